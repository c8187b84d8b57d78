"""Models with float16 parameters, inputs or both: types, values, state."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # the name everybody uses

import poptorch
from closeness import assert_close_sums, largest_of

HALF, FLOAT = torch.float16, torch.float32


class WithLoss(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x, target):
        y = self.net(x)
        return y, F.mse_loss(y, target)


def test_master_weights_stay_float32_and_learn() -> None:
    torch.manual_seed(0)
    module = WithLoss(nn.Linear(10, 10))
    model = poptorch.trainingModel(module, optimizer=torch.optim.SGD(module.parameters(), lr=0.5))
    x, target = torch.ones(4, 10).half(), torch.randn(4, 10).half()[:1].expand(4, 10).contiguous()
    for _ in range(60):
        output, loss = model(x, target)
    assert output.dtype is HALF
    assert module.net.weight.dtype is FLOAT
    assert loss < 0.001
    torch.testing.assert_close(output, target, rtol=0, atol=1e-2)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "LAMB", "RMSprop"])
def test_float16_parameters_learn_with_loss_scaling(optimizer: str) -> None:
    torch.manual_seed(0)
    module = WithLoss(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))).half()
    rate = {"SGD": 0.1, "AdamW": 0.02, "LAMB": 0.02, "RMSprop": 0.005}[optimizer]
    chosen = getattr(poptorch.optim, optimizer)(module.parameters(), lr=rate, loss_scaling=64.0)
    model = poptorch.trainingModel(module, optimizer=chosen)
    x = torch.randn(32, 4).half()
    target = x.sum(1, keepdim=True).tanh()
    first = model(x, target)[1].float()
    for _ in range(60):
        loss = model(x, target)[1].float()
    assert loss < 0.2 * first
    assert {p.dtype for p in module.parameters()} == {HALF}


def test_each_module_keeps_its_own_type() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).half())
    x = torch.randn(2, 4)
    assert poptorch.inferenceModel(net)(x).dtype is HALF
    upcast = poptorch.Options()
    upcast.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    assert poptorch.inferenceModel(net, upcast)(x).dtype is FLOAT
    net[0].half()
    assert poptorch.inferenceModel(net)(x.half()).dtype is HALF
    net.float()
    assert_close_sums(poptorch.inferenceModel(net)(x), net(x).detach(), terms=4, steps=2)


ROUNDINGS = 4
"""Results in float16 that follow one another, in the deepest of these models."""

CASES = {
    "linear": (lambda: nn.Linear(6, 10), (4, 6)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (2, 3, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 5, 5)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (5, 2, 8)),
    "lstm": (lambda: _First(nn.LSTM(4, 5)), (3, 2, 4)),
    "gru": (lambda: _First(nn.GRU(4, 5)), (3, 2, 4)),
    "pooling": (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.MaxPool2d(2), nn.Flatten()), (2, 3, 8, 8)),
    "activations": (lambda: nn.Sequential(nn.GELU(), nn.Softplus(), nn.LogSoftmax(1), nn.Mish(), nn.CELU()), (3, 7)),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(8), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4)), (2, 4, 8)),
}


class _First(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("case", CASES)
def test_half_modules_agree_with_float32(case: str) -> None:
    torch.manual_seed(0)
    make, shape = CASES[case]
    reference = make()
    half = make()
    half.load_state_dict(reference.state_dict())
    half.half()
    x = torch.randn(shape)
    y = poptorch.inferenceModel(half)(x.half())
    assert y.dtype is HALF
    assert_close_sums(y.float(), reference(x).detach(), terms=1, steps=ROUNDINGS, dtype=HALF)


@pytest.mark.parametrize("case", ["convolutions", "attention", "lstm", "norms"])
def test_half_training_agrees_with_float32(case: str) -> None:
    torch.manual_seed(0)
    make, shape = CASES[case]
    reference = make()
    half = make()
    half.load_state_dict(reference.state_dict())
    wrapped = WithLoss(half).half()
    x = torch.randn(shape)
    target = torch.randn_like(reference(x)).detach()
    reference.zero_grad()
    before = {n: p.detach().clone() for n, p in half.named_parameters()}
    F.mse_loss(reference(x), target).backward()
    model = poptorch.trainingModel(wrapped, optimizer=torch.optim.SGD(wrapped.parameters(), lr=1.0))
    _, loss = model(x.half(), target.half())
    assert loss.dtype is HALF
    # Terms of a gradient that cancel out are as large as the other gradients; weights are rounded to the type, too.
    scale = max(largest_of(t) for p in reference.parameters() for t in (p, p.grad))
    for name, parameter in reference.named_parameters():
        change = (before[name] - dict(half.named_parameters())[name].detach()).float()
        assert_close_sums(change, parameter.grad, terms=1, steps=2 * ROUNDINGS, scale=scale, dtype=HALF)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.norm(x)
        return y, self.norm.running_mean, self.norm.running_var


@pytest.mark.parametrize(("always_float", "expected"), [(None, FLOAT), (True, FLOAT), (False, HALF)])
def test_running_statistics(always_float, expected) -> None:
    options = poptorch.Options()
    if always_float is not None:
        options.Precision.runningStatisticsAlwaysFloat(always_float)
    torch.manual_seed(0)
    module, reference = Normalised().half(), Normalised()
    x = torch.randn(6, 4)
    model = poptorch.inferenceModel(module.train(), options)
    results = model(x.half())
    assert [t.dtype for t in results] == [HALF, expected, expected]
    assert_close_sums(results[0].float(), reference.train()(x)[0].detach(), terms=1, dtype=HALF)
    assert [t.unique().tolist() for t in results[1:]] == [[0.0], [1.0]]  # those from before the call
    model.copyWeightsToHost()
    for name in ("running_mean", "running_var"):
        ours, theirs = getattr(module.norm, name), getattr(reference.norm, name)
        assert ours.dtype is HALF  # the host's own type
        assert_close_sums(ours.float(), theirs, terms=1, dtype=HALF)


def test_float32_statistics_are_kept_on_request_of_the_buffers() -> None:
    module = Normalised().half()
    module.norm.running_mean = module.norm.running_mean.float()
    module.norm.running_var = module.norm.running_var.float()
    options = poptorch.Options()
    options.Precision.runningStatisticsAlwaysFloat(False)
    results = poptorch.inferenceModel(module.train(), options)(torch.randn(6, 4).half())
    assert [t.dtype for t in results] == [HALF, FLOAT, FLOAT]


def test_float16_buffers_change_in_place() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3, dtype=HALF))

        def forward(self, x):
            self.count += 1
            return x + self.count

    module = Counter()
    model = poptorch.inferenceModel(module)
    for expected in (1.0, 2.0, 3.0):
        assert model(torch.zeros(3).half()).tolist() == [expected] * 3
    model.copyWeightsToHost()
    assert module.count.dtype is HALF
    assert module.count.tolist() == [3.0] * 3


def test_partials_are_recorded_for_the_model_of_the_ipu() -> None:
    from poptorch.program.opinfo import info_of

    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    x = torch.randn(1, 1, 4, 4)

    def partials(dtype):
        options = poptorch.Options()
        if dtype is not None:
            options.Precision.setPartialsType(dtype)
        model = poptorch.inferenceModel(net, options)
        y = model(x)
        return [info_of(n).partials for n in model.program.operations() if "addmm" in n.name or "conv" in n.name], y

    found, y = partials(torch.half)
    assert found == ["half", "half"]
    assert partials(torch.float)[0] == ["float", "float"]
    none, reference = partials(None)
    assert none == [None, None]
    assert_close_sums(y, reference, terms=9, steps=2)
