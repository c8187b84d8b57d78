"""When inputs and outputs of the last call moved: real time stamps, one set per micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

Latency = tuple[float, float, float]


@dataclass
class PerfCounters:
    """Time stamps in seconds, from an arbitrary origin."""

    num_inputs: int = 0
    num_outputs: int = 0
    input: list[float] = field(default_factory=list)
    input_complete: list[float] = field(default_factory=list)
    output: list[float] = field(default_factory=list)
    output_complete: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, list[list[float]]]:
        """One list per graph input or output tensor, as users read them."""
        return {
            "input": [list(self.input) for _ in range(self.num_inputs)],
            "input_complete": [list(self.input_complete) for _ in range(self.num_inputs)],
            "output": [list(self.output) for _ in range(self.num_outputs)],
            "output_complete": [list(self.output_complete) for _ in range(self.num_outputs)],
        }


EMPTY: dict[str, list[list[float]]] = {k: [[]] for k in ("input", "input_complete", "output", "output_complete")}


def latency(counters: dict[str, list[list[float]]], start: str, end: str, first: bool = True) -> Latency:
    """Shortest, longest and average time from event ``start`` to event ``end``.

    Events of several tensors at one position are combined: the first one for a start of transfers (``first``), else the
    last. When inputs are more frequent than outputs, they are grouped evenly and the earliest of a group counts.
    """
    starts = _combine(counters[start], min if first else max)
    ends = _combine(counters[end], max)
    if not ends or not starts:
        return (0.0, 0.0, 0.0)
    durations = [e - s for s, e in zip(_grouped(starts, len(ends)), ends, strict=False)]
    return (min(durations), max(durations), sum(durations) / len(durations))


def _combine(stamps: Sequence[Sequence[float]], choose: object) -> list[float]:
    pick = min if choose is min else max
    return [pick(column) for column in zip(*stamps, strict=False)]


def _grouped(stamps: list[float], count: int) -> list[float]:
    if len(stamps) <= count:
        return stamps
    size = len(stamps) // count
    source = iter(stamps)
    return [min(islice(source, size)) for _ in range(count)]
