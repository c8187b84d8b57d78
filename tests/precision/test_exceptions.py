"""Floating-point exceptions, on and off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch

INF, NAN = float("inf"), float("nan")


class Call(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def wrapped(function: Callable[..., object], enabled: bool | None = True) -> poptorch.PoplarExecutor:
    options = poptorch.Options()
    if enabled is not None:
        options.Precision.enableFloatingPointExceptions(enabled)
    return poptorch.inferenceModel(Call(function), options)


CASES = {
    "division by zero": (torch.div, ([1.0, 1.0], [1.0, 0.0]), "division by zero in operation 'div'"),
    "division by infinity": (torch.div, ([1.0, 1.0], [1.0, INF]), "division by infinity"),
    "zero times infinity": (torch.mul, ([0.0, 1.0], [INF, 1.0]), "invalid operation .* in operation 'mul'"),
    "difference of infinities": (torch.sub, ([INF], [INF]), "invalid operation .* in operation 'sub'"),
    "square root": (torch.sqrt, ([-1.0, 4.0],), "invalid operation .* in operation 'sqrt'"),
    "comparison": (lambda x: x > NAN, ([1.0, 2.0],), "comparison with NaN"),
    "comparison of tensors": (torch.gt, ([1.0], [NAN]), "comparison with NaN"),
    "overflow": (torch.exp, ([3800.0, 4203.0],), "overflow in operation 'exp'"),
    "overflow of a cast": (lambda x: x.half(), ([70000.0],), "overflow"),
    "division by zero beside a NaN": (torch.div, ([1.0, 1.0], [0.0, NAN]), "division by zero in operation 'div'"),
    "overflow beside a NaN": (torch.add, ([3e38, NAN], [3e38, 0.0]), "overflow in operation 'add'"),
    "overflow beside an infinity": (torch.mul, ([3e38, INF], [3e38, 1.0]), "overflow in operation 'mul'"),
    "overflow beside a NaN in a row": (torch.mul, ([[3e38], [NAN]], [3e38, 1.0]), "overflow in operation 'mul'"),
    "square root beside a NaN": (torch.sqrt, ([-1.0, NAN],), "invalid operation .* in operation 'sqrt'"),
}


@pytest.mark.parametrize("case", CASES)
def test_exceptions(case: str) -> None:
    function, values, message = CASES[case]
    inputs = [torch.tensor(v) for v in values]
    with pytest.raises(poptorch.Error, match=message):
        wrapped(function)(*inputs)
    for enabled in (False, None):
        wrapped(function, enabled)(*inputs)


def test_the_message_names_the_line() -> None:
    def at_fault(x):
        y = x + 1
        return torch.log(y)  # the line

    line = at_fault.__code__.co_firstlineno + 2
    with pytest.raises(poptorch.Error, match=rf"'log'.*test_exceptions.py:{line}"):
        wrapped(at_fault)(torch.tensor([-5.0]))


def test_the_model_can_be_called_again() -> None:
    model = wrapped(torch.sqrt)
    with pytest.raises(poptorch.Error):
        model(torch.tensor([-1.0]))
    assert model(torch.tensor([4.0])).tolist() == [2.0]


def test_training_can_go_on() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return poptorch.identity_loss(self.layer(x).exp().sum(), reduction="none")

    options = poptorch.Options()
    options.Precision.enableFloatingPointExceptions(True)
    options.Training.gradientAccumulation(2)
    module = WithLoss()
    with torch.no_grad():
        module.layer.weight.fill_(1.0)
    model = poptorch.trainingModel(module, options, torch.optim.SGD(module.parameters(), lr=0.0))
    good, bad = torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [1e4, 1e4]])
    first = model(good)
    with pytest.raises(poptorch.Error, match="overflow"):
        model(bad)
    assert model(good).equal(first)


ACTIVATIONS = [
    nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.PReLU(), nn.SiLU(), nn.GELU(), nn.Softmax(0), nn.LogSoftmax(0),
    nn.Softsign(), nn.LeakyReLU(), nn.Hardtanh(), nn.Softplus(), nn.Softplus(5, 4), nn.Softshrink(), nn.Hardshrink(),
    nn.Hardsigmoid(), nn.Hardswish(),
]  # fmt: skip


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=str)
def test_activations_of_large_numbers_are_fine(layer: nn.Module) -> None:
    x = torch.tensor([10.0, 100.0, 1000.0])
    assert wrapped(lambda x: layer(x))(x).isfinite().all()


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_what_comes_in_with_the_inputs_passes_quietly(value: float) -> None:
    x = torch.tensor([1.0, value])
    for function in (lambda x: x, lambda x: x + 1, torch.relu, torch.sum, lambda x: x.half(), lambda x: 2 * x[None]):
        assert torch.equal(wrapped(function)(x).isfinite(), function(x).isfinite())


def test_masks_with_infinities_are_fine() -> None:
    def attention(x):
        mask = torch.full((3, 3), -INF).triu(1)
        return torch.softmax(x + mask, -1)

    assert wrapped(attention)(torch.ones(3, 3)).isfinite().all()
