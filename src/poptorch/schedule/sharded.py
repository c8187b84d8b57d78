"""Sharded execution: one IPU at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poptorch.schedule.clock import positive, worker_of_each
from poptorch.schedule.job import Job, Kind, Tick


def one_at_a_time(parts: int, micro: int, *, training: bool) -> Iterator[Job]:
    """Jobs in the order of a program without any overlap: forward through all parts, backward in reverse.

    >>> print(*one_at_a_time(parts=2, micro=2, training=True))
    0F@0 0F@1 0B@1 0B@0 1F@0 1F@1 1B@1 1B@0
    """
    for m in range(micro):
        for part in range(parts):
            yield Job(m, Kind.FORWARD, part)
        if training:
            for part in reversed(range(parts)):
                yield Job(m, Kind.BACKWARD, part)


def sharded(stages: int, micro: int, ipus: Sequence[int] | None = None, *, training: bool = True) -> Iterator[Tick]:
    """Ticks with a single busy IPU each; no micro-batch starts before the one before is done.

    ``stages=2, micro=2``::

        IPU0 | 0F .  .  0B 1F .  .  1B
        IPU1 | .  0F 0B .  .  1F 1B .

    >>> for tick in sharded(stages=2, micro=1, training=False):
    ...     print(tick)
    0F .
    . 0F
    """
    positive(stages=stages, micro=micro)
    workers = [group[0] for group in worker_of_each(stages, ipus)]
    return (
        Tick(tuple(job if worker == workers[job.part] else None for worker in range(max(workers) + 1)))
        for job in one_at_a_time(stages, micro, training=training)
    )
