"""How the time of a training step grows with the number of processes: a prediction without any process.

A step computes, then gradients are summed over processes, then weights change. Gradients travel in portions. With
overlap, a portion starts as soon as back-propagation has reached all of its gradients; portions take turns on one
link.

Nothing here measures, and nothing depends on torch. ``bench/processes.py`` says where the numbers come from.

>>> from transport import Collective, Link, Transport
>>> wire = Transport("example", {it: Link(1e-5, 1e-9) for it in Collective})
>>> model = Workload("example", (Portion(8_000_000, 1.0),), (), Sharding(()))
>>> training = Training(model, Compute(0.1, 0.02), samples=5, global_samples=20, micro_batch=5)
>>> alone, four = (training.seconds(wire, processes, Exchange.AFTER, samples=5) for processes in (1, 4))
>>> round(alone, 3), round(four - alone, 5)
(0.2, 0.01206)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from transport import Collective, Transport, crowding

FLOAT_BYTES = 4
"""Gradients travel in float32, whatever the type of the weights."""


class Exchange(Enum):
    """When and how gradients are summed."""

    AFTER = "after back-propagation"
    OVERLAPPED = "overlapping back-propagation"
    SHARDED = "sharded optimizer state"


@dataclass(frozen=True)
class Portion:
    """Gradients that travel together."""

    size: int
    """Bytes."""

    ready: float = 1.0
    """After which part of back-propagation all of them are there."""


@dataclass(frozen=True)
class Sharding:
    """What travels if every process updates the elements that it owns."""

    elements: tuple[int, ...]
    """Of each gradient that is divided among processes."""

    whole: tuple[Portion, ...] = ()
    """The others."""

    bucket_bytes: int = 8 << 20

    def portions(self, processes: int) -> list[int]:
        """Bytes of each portion. Every process owns equally many elements of each gradient; the last get padding.

        >>> Sharding((1000, 1000, 10), bucket_bytes=8000).portions(4), Sharding((10,)).portions(8)
        ([8000, 48], [64])
        """
        found, size = [], 0
        for count in self.elements:
            size += math.ceil(count / processes) * processes * FLOAT_BYTES
            if size >= self.bucket_bytes:
                found.append(size)
                size = 0
        return [*found, size] if size else found


@dataclass(frozen=True)
class Workload:
    """A model as the processes of a job see it."""

    name: str
    portions: tuple[Portion, ...]
    """As the gradients lie after back-propagation."""

    as_ready: tuple[Portion, ...]
    """In the order in which back-propagation has them."""

    sharding: Sharding

    @property
    def gradient_bytes(self) -> int:
        """All gradients of one process, with padding."""
        return sum(it.size for it in self.portions)


@dataclass(frozen=True)
class Compute:
    """The time that a process needs for a step, without any other process."""

    fixed: float
    """Seconds that do not depend on the batch: the update, the start of operations."""

    per_sample: float
    backward: float = 2 / 3
    """The part of the time of samples that back-propagation takes."""

    def seconds(self, samples: float) -> float:
        """One step.

        >>> Compute(0.1, 0.02).seconds(5)
        0.2
        """
        return self.fixed + self.per_sample * samples

    @staticmethod
    def through(small: tuple[float, float], large: tuple[float, float]) -> Compute:
        """From two measured pairs of samples and seconds; neither part is negative.

        >>> Compute.through((1, 0.12), (5, 0.2))
        Compute(fixed=0.1, per_sample=0.02, backward=0.6666666666666666)
        """
        (few, quick), (many, slow) = small, large
        slope = min(max((slow - quick) / (many - few), 0.0), quick / few)
        return Compute(round(quick - slope * few, 12), round(slope, 12))


def volume(workload: Workload, processes: int, exchange: Exchange) -> float:
    """Bytes that each process sends in a step."""
    return sum(kind.volume(processes, size) for kind, size in operations(workload, processes, exchange))


def operations(workload: Workload, processes: int, exchange: Exchange) -> list[tuple[Collective, int]]:
    """The collectives of a step with their sizes, in order."""
    if processes == 1:
        return []
    if exchange is not Exchange.SHARDED:
        portions = workload.portions if exchange is Exchange.AFTER else workload.as_ready
        return [(Collective.ALL_REDUCE, it.size) for it in portions]
    sizes = workload.sharding.portions(processes)
    return [
        *((Collective.ALL_REDUCE, it.size) for it in workload.sharding.whole),
        *((Collective.REDUCE_SCATTER, size) for size in sizes),
        *((Collective.ALL_GATHER, size) for size in sizes),
    ]


def exchange_seconds(workload: Workload, transport: Transport, processes: int, exchange: Exchange) -> float:
    """The time of all collectives of a step, one after the other."""
    return sum(transport.seconds(kind, processes, n) for kind, n in operations(workload, processes, exchange))


def exposed(portions: Iterable[tuple[float, float]], backward: float) -> float:
    """How long processes wait after back-propagation, for portions ``(seconds when ready, seconds to exchange)``.

    Portions take turns, so the last is there when one of them started and all that followed went without a pause:
    the maximum over portions of when it was ready, and of what it and the later ones take.

    >>> exposed([(1.0, 0.5), (2.0, 0.5), (3.0, 0.5)], backward=3.0), exposed([(1.0, 3.0), (2.0, 3.0)], backward=3.0)
    (0.5, 4.0)
    """
    remaining, end = 0.0, 0.0
    for ready, seconds in sorted(portions, reverse=True):
        remaining += seconds
        end = max(end, ready + remaining)
    return max(0.0, end - backward)


def ready_times(portions: Sequence[Portion], backward: float) -> list[float]:
    """Seconds after the start of back-propagation."""
    return [it.ready * backward for it in portions]


@dataclass(frozen=True)
class Training:
    """A model on one kind of machine, of which every process has one."""

    workload: Workload
    compute: Compute
    samples: int
    """Of each process in weak scaling."""

    global_samples: int
    """Of all processes in strong scaling."""

    micro_batch: int
    """Samples that a process takes through the model at a time; the exchange overlaps the last of them."""

    def seconds(self, transport: Transport, processes: int, exchange: Exchange, samples: float) -> float:
        """The time of a step in which each process has so many samples.

        Only the last micro-batch's back-propagation can hide an exchange, and only where processes have cores of their
        own: else there is no core that would be free.
        """
        crowd = crowding(processes, transport.cores)
        working = self.compute.seconds(samples) * crowd
        if exchange is not Exchange.OVERLAPPED or crowd > 1:
            return working + exchange_seconds(self.workload, transport, processes, exchange)
        backward = self.compute.per_sample * self.compute.backward * min(samples, self.micro_batch)
        sizes = (it.size for it in self.workload.as_ready)
        costs = (transport.seconds(Collective.ALL_REDUCE, processes, size) for size in sizes)
        portions = zip(ready_times(self.workload.as_ready, backward), costs, strict=True)
        return working + exposed(portions, backward)

    def weak_efficiency(self, transport: Transport, processes: int, exchange: Exchange) -> float:
        """The time of one process, divided by the time of many processes that have as many samples each."""
        one, many = (self.seconds(transport, count, exchange, self.samples) for count in (1, processes))
        return one / many

    def strong_speedup(self, transport: Transport, processes: int, exchange: Exchange) -> float:
        """How many times faster many processes are than one, if all together have as many samples."""
        one, many = (self.seconds(transport, count, exchange, self.global_samples / count) for count in (1, processes))
        return one / many
