"""Taking the times of one call, one set per micro-batch, in whatever order the micro-batches run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from poptorch.enums import OutputMode
from poptorch.profiling.trace import SpanKind, Trace, TraceSpan
from poptorch.program.loop import Loop, MicroBatch
from poptorch.runtime.counters import PerfCounters


def is_returned(loop: Loop, micro_batch: MicroBatch) -> bool:
    """Whether the micro-batch's outputs go to the host; under ``Sum`` only the last ones do."""
    if loop.output_mode is OutputMode.Sum:
        return loop.is_last(micro_batch)
    return loop.output_block(micro_batch) is not None


class GroupTimes(NamedTuple):
    """When one group of micro-batches asked for its inputs, began, ended, and had its outputs delivered."""

    members: Sequence[MicroBatch]
    asked: float
    begun: float
    ended: float
    delivered: float


def store_times(times: Sequence[GroupTimes], loop: Loop, counters: PerfCounters) -> None:
    """Hand over the times of groups that ran one after the other."""
    sizes = [(t, len(t.members), sum(is_returned(loop, m) for m in t.members)) for t in times]
    counters.input = [t.asked for t, size, _ in sizes for _ in range(size)]
    counters.input_complete = [t.begun for t, size, _ in sizes for _ in range(size)]
    counters.output = [t.ended for t, _, returned in sizes for _ in range(returned)]
    counters.output_complete = [t.delivered for t, _, returned in sizes for _ in range(returned)]


class Stamps:
    """Times of inputs and outputs of one call whose micro-batches run side by side."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._input: dict[MicroBatch, float] = {}
        self._input_complete: dict[MicroBatch, float] = {}
        self._output: dict[MicroBatch, float] = {}
        self._output_complete: dict[MicroBatch, float] = {}

    def input(self, members: Sequence[MicroBatch]) -> None:
        """The inputs of a group of micro-batches are asked for."""
        _note_first(self._input, members)

    def input_complete(self, members: Sequence[MicroBatch]) -> None:
        """The inputs have been delivered."""
        _note_first(self._input_complete, members)

    def output(self, members: Sequence[MicroBatch]) -> None:
        """An output of the micro-batches is about to be sent."""
        _note_first(self._output, members)

    def output_complete(self, members: Sequence[MicroBatch]) -> None:
        """An output has arrived; the last one counts."""
        self._output_complete.update(dict.fromkeys(members, time.perf_counter()))

    def complete(self) -> None:
        """The rest of the call ran in other processes: what was not seen here has happened by now."""
        micro_batches = list(self._loop.micro_batches())
        for times in (self._input, self._input_complete, self._output, self._output_complete):
            _note_first(times, micro_batches)

    def store(self, counters: PerfCounters) -> None:
        """Hand the times over."""
        micro_batches = list(self._loop.micro_batches())
        returned = [m for m in micro_batches if is_returned(self._loop, m)]
        counters.input = [self._input[m] for m in micro_batches if m in self._input]
        counters.input_complete = [self._input_complete[m] for m in micro_batches if m in self._input_complete]
        counters.output = [self._output[m] for m in returned if m in self._output]
        counters.output_complete = [self._output_complete[m] for m in returned if m in self._output_complete]

    def report(self, trace: Trace) -> None:
        """Put a span for the inputs and one for the outputs of each micro-batch into a trace."""
        for kind, begun, ended in (
            (SpanKind.INPUT, self._input, self._input_complete),
            (SpanKind.OUTPUT, self._output, self._output_complete),
        ):
            for micro_batch, start in begun.items():
                micro, replica = self._loop.position(micro_batch), self._loop.global_replica(micro_batch.replica)
                trace.add(TraceSpan(kind, start, ended[micro_batch], 0, micro, replica))


def _note_first(times: dict[MicroBatch, float], members: Sequence[MicroBatch]) -> None:
    now = time.perf_counter()
    for micro_batch in members:
        times.setdefault(micro_batch, now)
