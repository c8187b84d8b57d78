"""How long inputs and outputs of the last call took, from the time stamps of its micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

Latency = tuple[float, float, float]


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
