"""Equal forms of a graph give equal results."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import poptorch
from closeness import assert_close_sums
from poptorch.host.native.rewriting import FasterForms
from poptorch.libraries.choice import MKL_ALONE

aten = torch.ops.aten


def rewritten(function, *values):
    module = make_fx(function)(*values)
    for node, value in zip(module.graph.find_nodes(op="placeholder"), values, strict=True):
        node.meta["val"] = value
    FasterForms(MKL_ALONE)(module.graph)
    module.recompile()
    return module


def test_biases_leave_their_products_and_other_sums_stay():
    x, w, bias, matrix = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5), torch.randn(3, 5)

    def function(x, w, bias, matrix):
        return torch.addmm(bias, x, w), torch.addmm(matrix, x, w), torch.addmm(bias, x, w, beta=2)

    module = rewritten(function, x, w, bias, matrix)
    assert len(module.graph.find_nodes(op="call_function", target=aten.addmm.default)) == 2
    assert_close_sums(tuple(module(x, w, bias, matrix)), function(x, w, bias, matrix), terms=5)


def test_short_types_keep_the_single_rounding():
    values = [torch.randn(shape).half() for shape in ((5,), (3, 4), (4, 5))]
    module = rewritten(lambda bias, x, w: torch.addmm(bias, x, w), *values)
    assert module.graph.find_nodes(op="call_function", target=aten.addmm.default)


def test_a_bias_is_added_in_the_shape_in_which_the_product_is_used():
    x, w, bias = torch.randn(6, 4), torch.randn(4, 5), torch.randn(5)

    def function(x, w, bias):
        y = torch.addmm(bias, x, w)
        return y, torch.tanh(y.view(2, 3, 5))

    module = rewritten(function, x, w, bias)
    (total,) = module.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    assert total.meta["val"].shape == (2, 3, 5)
    assert_close_sums(tuple(module(x, w, bias)), function(x, w, bias), terms=5)


@pytest.mark.parametrize("shape", [(64, 512), (8, 8, 512)])
def test_what_a_product_reads_is_summed_by_a_product(shape):
    x, w = torch.randn(shape), torch.randn(512, 4)
    dims = list(range(len(shape) - 1))

    def function(x, w):
        return x.sum(dims, keepdim=True), x.sum(dims), x.view(-1, 512) @ w

    module = rewritten(function, x, w)
    assert not module.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)
    assert len(module.graph.find_nodes(op="call_function", target=aten.full.default)) == 1
    assert_close_sums(tuple(module(x, w)), function(x, w), terms=512)


@pytest.mark.parametrize(
    ("shape", "dtype", "function"),
    [
        ((64, 512), torch.float32, lambda x, w: (x.exp().sum(0), x @ w)),  # fused with what comes before
        ((64, 512), torch.float32, lambda x, w: (x.sum(1), x @ w)),
        ((64, 512), torch.float32, lambda x, w: (x.sum(0, dtype=torch.float64), x @ w)),
        ((4, 512), torch.float32, lambda x, w: (x.sum(0), x @ w)),  # not worth it
        ((64, 512), torch.bfloat16, lambda x, w: (x.sum(0), x @ w)),
    ],
)
def test_other_sums_stay(shape, dtype, function):
    module = rewritten(function, torch.randn(shape, dtype=dtype), torch.randn(512, 4, dtype=dtype))
    assert module.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)


@pytest.mark.parametrize("stages", [1, 2])
def test_native_training_with_biases_equals_eager(stages, monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    torch.manual_seed(0)
    model, reference = Layers(), Layers()
    reference.load_state_dict(model.state_dict())
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    if stages == 2:
        model.second = poptorch.BeginBlock(model.second, ipu_id=1)
    x = torch.randn(8, 4)
    poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))(x)
    for block in x.chunk(4):
        (reference(block) / 4).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    assert_close_sums(list(model.parameters()), list(reference.parameters()), terms=8, steps=2)


class Layers(nn.Module):
    """Two linear layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        y = self.second(torch.tanh(self.first(x)))
        return poptorch.identity_loss((y * y).mean(), reduction="none")
