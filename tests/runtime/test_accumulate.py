"""Gradients of micro-batches and replicas, combined for one update."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import accumulating
from poptorch.executable.groups import HostLoop
from poptorch.runtime.accumulate import GradientAccumulator
from poptorch.runtime.gradients import GradientSink

VALUES = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8)


def combined(values: list[float], running: bool) -> float:
    loop = HostLoop(gradient_accumulation=len(values))
    accumulator = GradientAccumulator(accumulating.executable(["w"], loop, running))
    for value in values:
        accumulator.add([torch.tensor(value, dtype=torch.float64)])
    return float(accumulator.take()["w"])


@given(VALUES)
@settings(max_examples=50)
def test_a_running_mean_is_the_mean(values: list[float]) -> None:
    assert combined(values, running=True) == pytest.approx(sum(values) / len(values), abs=1e-9)


@given(VALUES)
@settings(max_examples=50)
def test_a_mean_that_is_taken_later_leaves_the_sum(values: list[float]) -> None:
    assert combined(values, running=False) == pytest.approx(sum(values), abs=1e-9)


def test_the_next_update_starts_afresh() -> None:
    accumulator = GradientAccumulator(accumulating.executable(["w"], HostLoop(gradient_accumulation=2)))
    for value in (1.0, 3.0):
        accumulator.add([torch.full((2,), value)])
    assert torch.equal(accumulator.take()["w"], torch.full((2,), 4.0))
    accumulator.add([torch.full((2,), 100.0)])
    accumulator.reset()  # as after a failed call
    for value in (5.0, 6.0):
        accumulator.add([torch.full((2,), value)])
    assert torch.equal(accumulator.take()["w"], torch.full((2,), 11.0))


def test_gradients_that_are_added_do_not_change() -> None:
    accumulator = GradientAccumulator(accumulating.executable(["w"], HostLoop(replicas=2)))
    one, two = torch.ones(2), torch.ones(2)
    accumulator.add([one], replica=0)
    accumulator.add([two], replica=1)
    assert torch.equal(accumulator.take()["w"], torch.full((2,), 2.0))
    assert torch.equal(one, torch.ones(2))
    assert torch.equal(two, torch.ones(2))


def test_the_accumulator_has_the_type_that_the_optimizer_chose() -> None:
    loop = HostLoop(gradient_accumulation=2)
    accumulator = GradientAccumulator(accumulating.executable(["w"], loop, types={"w": torch.float32}))
    for _ in range(2):
        accumulator.add([torch.full((1,), 60000.0, dtype=torch.float16)])
    assert torch.equal(accumulator.take()["w"], torch.tensor([120000.0]))  # twice the largest float16, about


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_the_order_of_arrival_does_not_change_the_sum(order: tuple[int, ...]) -> None:
    """In float32 these sums depend on the order of additions: (2**24 + 1) + 1 is 2**24, 2**24 + (1 + 1) is not."""
    gradients = GradientSink(accumulating.executable(["w"], HostLoop(gradient_accumulation=3)), stages=[[["w"]]])
    values = (2.0**24, 1.0, 1.0)
    for micro in order:
        gradients.add(0, 0, micro, 0, [torch.tensor([values[micro]])])
    assert torch.equal(gradients.take()["w"], torch.tensor([2.0**24]))
