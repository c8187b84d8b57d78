"""What collective operations cost: an α-β model of a transport, and its fit to measurements.

A message of n bytes between two processes takes ``α + β·n`` seconds. Collectives are rounds of such messages around a
ring, as gloo does them. Where processes share cores, and there are more processes than cores, they take turns:
everything takes as many times longer as there are processes for each core.

>>> wire = Transport("example", {it: Link(1e-5, 1e-9) for it in Collective})
>>> round(wire.seconds(Collective.ALL_REDUCE, 4, 8_000_000), 5)  # 6 rounds, 12 million bytes
0.01206
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Collective(Enum):
    """An operation of a group of processes. Its size is that of the whole tensor."""

    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_GATHER = "all-gather"
    POINT_TO_POINT = "point-to-point"

    def rounds(self, processes: int) -> int:
        """How many messages each process sends, one after the other.

        >>> [it.rounds(8) for it in Collective]
        [14, 7, 7, 1]
        """
        if processes == 1:
            return 0
        if self is Collective.POINT_TO_POINT:
            return 1
        return (2 if self is Collective.ALL_REDUCE else 1) * (processes - 1)

    def volume(self, processes: int, size: float) -> float:
        """How many bytes each process sends.

        >>> [it.volume(8, 800) for it in Collective]
        [1400.0, 700.0, 700.0, 800]
        """
        if processes == 1:
            return 0.0
        if self is Collective.POINT_TO_POINT:
            return size
        return self.rounds(processes) * size / processes


@dataclass(frozen=True)
class Link:
    """What one message costs."""

    latency: float
    """α: seconds, however short the message is."""

    seconds_per_byte: float
    """β."""

    def seconds(self, rounds: float, volume: float) -> float:
        """The time of some messages, one after the other, with so many bytes together."""
        return rounds * self.latency + volume * self.seconds_per_byte


def crowding(processes: int, cores: int | None) -> float:
    """How many times longer work takes because processes share cores; ``None``: each has cores of its own.

    >>> crowding(8, 2), crowding(1, 2), crowding(1024, None)
    (4.0, 1.0, 1.0)
    """
    return 1.0 if cores is None else max(1.0, processes / cores)


@dataclass(frozen=True)
class Transport:
    """How processes of a job reach each other."""

    name: str
    links: Mapping[Collective, Link]
    cores: int | None = None
    """How many cores all processes share, which also do the work of the transport."""

    def seconds(self, collective: Collective, processes: int, size: float) -> float:
        """The time of one operation on a tensor of so many bytes."""
        messages = self.links[collective].seconds(collective.rounds(processes), collective.volume(processes, size))
        return messages * crowding(processes, self.cores)

    def on_own_machines(self) -> Transport:
        """The same links between processes that share no cores."""
        return Transport(self.name, self.links)


@dataclass(frozen=True)
class Sample:
    """A measured operation."""

    collective: Collective
    processes: int
    size: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """A link that explains measurements, and how well."""

    link: Link
    median_error: float
    worst_error: float


def fit(samples: Sequence[Sample], cores: int | None) -> Fit:
    """The link with the least squares of relative errors. Neither of its numbers is negative.

    >>> link = Link(2e-5, 1e-9)
    >>> wire = Transport("example", {Collective.ALL_GATHER: link})
    >>> sizes = (64, 4096, 1 << 20)
    >>> exact = [Sample(Collective.ALL_GATHER, 4, n, wire.seconds(Collective.ALL_GATHER, 4, n)) for n in sizes]
    >>> found = fit(exact, None)
    >>> round(found.link.latency * 1e6, 6), round(found.link.seconds_per_byte * 1e9, 6), round(found.worst_error, 9)
    (20.0, 1.0, 0.0)
    """
    rows = []
    for it in samples:
        crowd = crowding(it.processes, cores)
        rounds, volume = it.collective.rounds(it.processes), it.collective.volume(it.processes, it.size)
        rows.append((rounds * crowd / it.seconds, volume * crowd / it.seconds))
    link = Link(*_least_squares(rows))
    wire = Transport("fit", dict.fromkeys((it.collective for it in samples), link), cores)
    errors = [abs(wire.seconds(it.collective, it.processes, it.size) / it.seconds - 1) for it in samples]
    return Fit(link, statistics.median(errors), max(errors))


def _least_squares(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The ``(α, β)``, none negative, for which ``α·a + β·b`` is closest to 1 over all rows ``(a, b)``."""
    aa, ab, bb = (sum(x * y for x, y in pairs) for pairs in _products(rows))
    a, b = sum(row[0] for row in rows), sum(row[1] for row in rows)
    determinant = aa * bb - ab * ab
    if determinant > 1e-9 * aa * bb:
        both = ((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant)
        if min(both) >= 0:
            return both
    candidates = [(a / aa, 0.0), (0.0, b / bb)]
    return min(candidates, key=lambda it: sum((it[0] * x + it[1] * y - 1) ** 2 for x, y in rows))


def _products(rows: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], ...]:
    return ([(a, a) for a, _ in rows], list(rows), [(b, b) for _, b in rows])
