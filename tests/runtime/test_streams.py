"""Outputs of micro-batches that end in any order."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from closeness import assert_close_sums
from poptorch.enums import OutputMode
from poptorch.program.loop import Loop, MicroBatch
from poptorch.runtime.streams import OutputStream

TICKS = [MicroBatch(i, s, r) for i, s, r in itertools.product(range(2), range(3), range(2))]


def value_of(tick: MicroBatch) -> torch.Tensor:
    """Numbers whose sum depends on the order of additions."""
    return torch.tensor([0.1 * (tick.iteration + 1) / 3, 1e6 / (tick.step + 7), 1e-6 * (tick.replica + 1)])


def gathered(ticks: list[MicroBatch], mode: OutputMode) -> torch.Tensor:
    loop = Loop(device_iterations=2, gradient_accumulation=3, replicas=2, output_mode=mode)
    stream = OutputStream(loop)
    for tick in ticks:
        stream.put(tick, value_of(tick))
    return stream.take()


@given(st.permutations(TICKS), st.sampled_from([OutputMode.All, OutputMode.Sum]))
def test_the_order_of_arrival_changes_nothing(ticks, mode):
    assert torch.equal(gathered(ticks, mode), gathered(TICKS, mode))


def test_sums_are_those_of_each_replica():
    expected = [sum(value_of(t) for t in TICKS if t.replica == r) for r in range(2)]
    assert_close_sums(gathered(TICKS, OutputMode.Sum), torch.cat(expected), terms=6)


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int8, torch.int16])
def test_sums_of_truths_and_small_integers_are_counts(kind):
    loop = Loop(device_iterations=2, gradient_accumulation=3, replicas=2, output_mode=OutputMode.Sum)
    largest = torch.tensor(1 if kind is torch.bool else torch.iinfo(kind).max, dtype=kind)
    stream = OutputStream(loop)
    for tick in TICKS:
        stream.put(tick, largest)
    sums = stream.take()
    assert sums.tolist() == [6 * int(largest)] * 2
    assert sums.dtype == stream.room((), kind).dtype == torch.int32


@pytest.mark.parametrize("iterations", [1, 2])
def test_the_type_of_a_sum_does_not_depend_on_the_loop(iterations):
    class Hits(torch.nn.Module):
        def forward(self, x):
            return x > 0

    options = poptorch.Options().deviceIterations(iterations).outputMode(OutputMode.Sum)
    hits = poptorch.inferenceModel(Hits(), options)(torch.tensor([1.0, -1.0] * iterations))
    assert hits.dtype == torch.int32
    assert hits.tolist() == [iterations, 0]
