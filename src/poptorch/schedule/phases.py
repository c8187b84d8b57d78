"""What serial and parallel phases share: groups of IPUs that hold one phase at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poptorch.schedule.clock import clock
from poptorch.schedule.job import Job, Kind, Tick
from poptorch.schedule.sharded import one_at_a_time


def in_phases(
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
