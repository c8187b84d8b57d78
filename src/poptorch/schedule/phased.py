"""Phases: groups of IPUs that hold one phase of the model at a time.

Serial phases share one group; parallel phases alternate between two, of which one computes while the other loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poptorch.schedule.clock import clock, positive
from poptorch.schedule.job import Job, Kind, Tick
from poptorch.schedule.sharded import one_at_a_time


def serial_phased(
    phases: int, micro: int, ipus: int = 1, *, training: bool = True, overlap: bool = True
) -> Iterator[Tick]:
    """Ticks of a model that is loaded and run phase by phase, all IPUs of the group together.

    ``L`` loads a phase (and puts the one before away), ``S`` stores the last one. ``phases=2, micro=1``::

        IPU0 | 0L@0 0F@0 0L@1 0F@1 0B@1 0L@0 0B@0 0S@0

    Without ``overlap``, putting away and loading are two steps::

        IPU0 | 0L@0 0F@0 0S@0 0L@1 0F@1 0B@1 0S@1 0L@0 0B@0 0S@0

    >>> print(*serial_phased(phases=2, micro=2, training=False))
    0L 0F 0L@1 0F@1 1L 1F 1L@1 1F@1
    """
    positive(phases=phases, micro=micro, ipus=ipus)
    return _in_phases(phases, micro, [range(ipus)], training=training, overlap=overlap)


def parallel_phased(phases: int, micro: int, ipus: int = 2, *, training: bool = True) -> Iterator[Tick]:
    """Ticks of a model whose even phases run on the even IPUs and whose odd phases run on the odd ones.

    Loads run beside the computation of the other group. ``phases=4, micro=1, ipus=2``::

        IPU0 | 0L@0 0F@0 0L@2 0F@2 .    .    0B@2 0L@0 0B@0 0S@0
        IPU1 | 0L@1 .    0F@1 0L@3 0F@3 0B@3 0L@1 0B@1 0S@1 .

    >>> for tick in parallel_phased(phases=2, micro=1, training=False):
    ...     print(tick)
    0L 0L
    0F .
    . 0F
    """
    positive(phases=phases, micro=micro)
    if ipus < 2 or ipus % 2:
        raise ValueError(f"Parallel phases alternate between two equal groups: ipus must be even, not {ipus}.")
    groups = [range(0, ipus, 2), range(1, ipus, 2)]
    return _in_phases(phases, micro, groups, training=training, overlap=True)


def _in_phases(
    phases: int, micro: int, groups: Sequence[Sequence[int]], *, training: bool, overlap: bool
) -> Iterator[Tick]:
    """Phase *p* runs on group ``p % len(groups)``, which loads it first unless it still holds it.

    A load puts the old phase away at the same time; without ``overlap`` a store of its own comes before it.
    In inference nothing has changed, so nothing is stored.
    """
    computing = list(one_at_a_time(phases, micro, training=training))
    before = dict(zip(computing[1:], computing, strict=False))
    queues: list[list[Job]] = [[] for _ in groups]
    held: list[Job | None] = [None] * len(groups)
    for job in computing:
        group = job.part % len(groups)
        last = held[group]
        if last is None or last.part != job.part:
            if last is not None and training and not overlap:
                queues[group].append(Job(last.micro, Kind.STORE, last.part))
            queues[group].append(Job(job.micro, Kind.LOAD, job.part))
        queues[group].append(job)
        held[group] = job
    if training:
        for queue, last in zip(queues, held, strict=True):
            if last is not None:
                queue.append(Job(last.micro, Kind.STORE, last.part))
    return clock(queues, groups, lambda job: (before[job],) if job in before else ())
