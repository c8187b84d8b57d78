"""Stochastic rounding: unbiased, one of two neighbours, reproducible, only for float16 and only on request."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import poptorch
from poptorch.host.interpret.stochastic import round_stochastically


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def neighbours(value: float) -> tuple[float, float]:
    """The float16 numbers at or below, and at or above."""
    nearest = torch.tensor(value, dtype=torch.float64).half()
    towards = torch.tensor(float("inf") if float(nearest) < value else float("-inf")).half()
    other = nearest if float(nearest) == value else torch.nextafter(nearest, towards)
    low, high = sorted((float(nearest), float(other)))
    return low, high


@given(st.floats(min_value=-60000, max_value=60000, width=32), st.integers(0, 2**31))
def test_results_are_neighbours(value: float, seed: int) -> None:
    rounded = round_stochastically(torch.full((16,), value), generator(seed))
    assert set(rounded.tolist()) <= set(neighbours(value))


@pytest.mark.parametrize("value", [1.0 + 2.0**-12, -3.3, 1234.567, 3e-5, -1e-6, 2.0**-25, 60001.0])
def test_expectation_is_the_value(value: float) -> None:
    count = 40000
    rounded = round_stochastically(torch.full((count,), value), generator()).double()
    exact = torch.tensor(value).double()
    low, high = neighbours(float(exact))
    # five standard errors of a mean of coin tosses between two neighbours
    assert abs(rounded.mean() - exact) <= 5 * (high - low) / 2 / count**0.5 + 1e-9 * abs(exact)


def test_numbers_that_fit_and_special_values_stay() -> None:
    fits = torch.tensor([0.0, -0.0, 1.0, -2.5, 65504.0, 2.0**-24, float("inf"), -float("inf")])
    rounded = round_stochastically(fits, generator())
    assert rounded.tolist() == fits.tolist()
    assert torch.signbit(rounded[1])
    assert torch.isnan(round_stochastically(torch.tensor([float("nan")]), generator())).all()


class AddLittle(nn.Module):
    def forward(self, x):
        return x + 2.0**-13


def model(enabled: bool, seed: int = 7) -> poptorch.PoplarExecutor:
    options = poptorch.Options().randomSeed(seed)
    options.Precision.enableStochasticRounding(enabled)
    return poptorch.inferenceModel(AddLittle(), options)


def test_in_a_model() -> None:
    x = torch.ones(20000).half()
    rounded = model(True)(x)
    assert rounded.dtype is torch.float16
    assert abs(rounded.double().mean() - 1 - 2.0**-13) < 1e-5
    assert model(False)(x).eq(1).all()


def test_repeats_with_the_seed_and_moves_on_from_call_to_call() -> None:
    x = torch.ones(500).half()
    first, second = model(True), model(True)
    one, two = first(x), second(x)
    assert one.equal(two)
    assert not first(x).equal(one)
    assert not model(True, seed=8)(x).equal(one)


def test_float32_is_unaffected() -> None:
    x = torch.rand(100)
    assert model(True)(x).equal(x + 2.0**-13)


def test_small_updates_of_float16_weights_are_not_lost() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2000, dtype=torch.float16))

        def forward(self, x):
            return poptorch.identity_loss((self.weight * x).sum().float(), reduction="none")

    def moved(enabled: bool) -> float:
        options = poptorch.Options().randomSeed(3)
        options.Precision.enableStochasticRounding(enabled)
        module = WithLoss()
        optimizer = poptorch.optim.SGD(module.parameters(), lr=2.0**-14)
        training = poptorch.trainingModel(module, options, optimizer)
        for _ in range(4):
            training(torch.ones(2000).half())
        return float(1 - module.weight.detach().double().mean())

    assert moved(False) == 0.0  # each step is an eighth of the spacing below 1
    assert abs(moved(True) - 4 * 2.0**-14) < 4e-5
