"""float16 operations computed in float32: rounding, copies of weights, missing kernels."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import poptorch
from closeness import assert_close_sums
from poptorch.host.interpret.half import SafetyNet
from poptorch.runtime.values.weights import Copies, Weights, copies_of


def test_products_are_rounded_once() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(300, 5).half()
    x = torch.randn(3, 300).half()
    y = poptorch.inferenceModel(layer)(x)
    exact = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    # half a unit in the last place, and a little for the order of float32 additions
    assert ((y.double() - exact).abs() <= exact.abs() * 2.0**-11 * 1.01 + 1e-6).all()


def test_no_product_runs_in_float16() -> None:
    model = poptorch.inferenceModel(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)).half())
    model(torch.randn(1, 1, 4, 4).half())
    lines = model.executable.code.micro_batch.source.splitlines()
    products = [line for line in lines if "op_addmm" in line or "op_convolution" in line]
    assert len(products) == 2
    for line in products:
        assert " = op_half(" in line
        assert "_f32" in line


def test_copies_of_weights_live_until_the_weights_change() -> None:
    weight = torch.ones(2).half()
    weights = Weights([weight])
    copy = weights.copies(0, weight)
    assert copy.dtype is torch.float32
    weight += 1
    assert weights.copies(0, weight).tolist() == [1.0, 1.0]  # nobody said so
    weights.changed()
    assert weights.copies(0, weight).tolist() == [2.0, 2.0]
    assert weights.copies(0, weight) is copy
    assert copies_of(weights) is weights.copies
    assert isinstance(copies_of([weight]), Copies)


def test_new_weights_reach_the_copies() -> None:
    layer = nn.Linear(3, 2).half()
    model = poptorch.inferenceModel(layer)
    x = torch.ones(1, 3).half()
    model(x)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(1.0)
    model.copyWeightsToDevice()
    assert model(x).tolist() == [[7.0, 7.0]]


def test_training_uses_the_updated_weights() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1, bias=False)

        def forward(self, x):
            y = self.layer(x)
            return y, poptorch.identity_loss(y.sum(), reduction="none")

    module = WithLoss().half()
    with torch.no_grad():
        module.layer.weight.fill_(4.0)
    options = poptorch.Options().deviceIterations(3).outputMode(poptorch.OutputMode.All)
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), lr=1.0))
    outputs, _ = model(torch.ones(3, 1).half())
    assert outputs.flatten().tolist() == [4.0, 3.0, 2.0]


def test_a_missing_kernel_is_replaced() -> None:
    calls = []

    def picky(x, *, dtype=None):
        calls.append(x.dtype)
        if x.dtype is torch.float16:
            raise RuntimeError("\"picky\" not implemented for 'Half'")
        return x * 2

    node = fx.Graph().placeholder("x")
    node.meta["val"] = torch.ones(2, dtype=torch.float16)
    net = SafetyNet(node, picky)
    for _ in range(2):
        result = net(torch.ones(2).half(), dtype=torch.float16)
        assert result.dtype is torch.float16
        assert result.tolist() == [2.0, 2.0]
    assert calls == [torch.float16, torch.float32, torch.float32]  # refused only once


def test_other_errors_are_not_hidden() -> None:
    def broken(x):
        raise RuntimeError("shapes do not match")

    node = fx.Graph().placeholder("x")
    node.meta["val"] = torch.ones(2, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        SafetyNet(node, broken)(torch.ones(2).half())


OPERATIONS = {
    "cdist": lambda x: torch.cdist(x, x),
    "histc": lambda x: torch.histc(x, 4, -2, 2),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "inverse": lambda x: torch.linalg.inv(x + 4 * torch.eye(4, dtype=x.dtype)),
    "multi margin": lambda x: nn.functional.multi_margin_loss(x, torch.zeros(4, dtype=torch.long)),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "bicubic": lambda x: nn.functional.interpolate(x[None, None], scale_factor=2, mode="bicubic"),
    "grid": lambda x: nn.functional.grid_sample(
        x[None, None], torch.zeros(1, 2, 2, 2, dtype=x.dtype), align_corners=False
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_that_cpus_may_lack_in_float16(name: str) -> None:
    function = OPERATIONS[name]

    class Model(nn.Module):
        def forward(self, x):
            return function(x)

    torch.manual_seed(0)
    x = torch.randn(4, 4).half()
    y = poptorch.inferenceModel(Model())(x)
    assert y.dtype is torch.float16
    assert_close_sums(y.float(), function(x.float()), terms=1, dtype=torch.float16)
