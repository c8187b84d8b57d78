"""Taking the times of one call, one set per micro-batch, in whatever order the micro-batches run."""

from __future__ import annotations

import time
from collections.abc import Sequence

from poptorch.enums import OutputMode
from poptorch.program.loop import Loop, MicroBatch
from poptorch.runtime.counters import PerfCounters


def is_returned(loop: Loop, micro_batch: MicroBatch) -> bool:
    """Whether the micro-batch's outputs go to the host; under ``Sum`` only the last ones do."""
    return loop.output_block(micro_batch) is not None and (
        loop.is_last(micro_batch) or loop.output_mode is not OutputMode.Sum
    )


class Stamps:
    """Times of inputs and outputs of one call."""

    def __init__(self, loop: Loop, silent: bool) -> None:
        self._loop = loop
        self._silent = silent
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

    def store(self, counters: PerfCounters) -> None:
        """Hand the times over; with synthetic data nothing moved."""
        micro_batches = [] if self._silent else list(self._loop.micro_batches())
        returned = [t for t in micro_batches if is_returned(self._loop, t)]
        counters.input = [self._input[t] for t in micro_batches if t in self._input]
        counters.input_complete = [self._input_complete[t] for t in micro_batches if t in self._input_complete]
        counters.output = [self._output[t] for t in returned if t in self._output]
        counters.output_complete = [self._output_complete[t] for t in returned if t in self._output_complete]


def _note_first(times: dict[MicroBatch, float], members: Sequence[MicroBatch]) -> None:
    now = time.perf_counter()
    for micro_batch in members:
        times.setdefault(micro_batch, now)


class SequentialStamps:
    """Times of a call whose micro-batches run one after the other: cheaper to take."""

    def __init__(self, loop: Loop, silent: bool) -> None:
        self._loop = loop
        self._silent = silent
        self._input: list[float] = []
        self._input_complete: list[float] = []
        self._output: list[float] = []
        self._output_complete: list[float] = []

    def input(self) -> None:
        """The inputs of the next group of micro-batches are asked for."""
        self._input += [time.perf_counter()] * self._loop.group_size

    def input_complete(self) -> None:
        """The inputs have been delivered."""
        self._input_complete += [time.perf_counter()] * self._loop.group_size

    def output(self, members: Sequence[MicroBatch]) -> None:
        """The outputs are about to be sent."""
        self._output += [time.perf_counter()] * self._returned(members)

    def output_complete(self, members: Sequence[MicroBatch]) -> None:
        """The outputs have arrived."""
        self._output_complete += [time.perf_counter()] * self._returned(members)

    def _returned(self, members: Sequence[MicroBatch]) -> int:
        return sum(is_returned(self._loop, micro_batch) for micro_batch in members)

    def store(self, counters: PerfCounters) -> None:
        """Hand the times over; with synthetic data nothing moved."""
        kept = ([], [], [], []) if self._silent else (
            self._input, self._input_complete, self._output, self._output_complete
        )  # fmt: skip
        counters.input, counters.input_complete, counters.output, counters.output_complete = kept
