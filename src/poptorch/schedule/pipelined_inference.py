"""Pipelined inference: a staircase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poptorch.schedule.clock import clock, data_dependencies, positive, worker_of_each
from poptorch.schedule.job import Job, Kind, Tick


def pipelined_inference(stages: int, micro: int, ipus: Sequence[int] | None = None) -> Iterator[Tick]:
    """Ticks in which ``micro`` micro-batches follow each other through the stages. ``stages=3, micro=3``::

        IPU0 | 0F 1F 2F .  .
        IPU1 | .  0F 1F 2F .
        IPU2 | .  .  0F 1F 2F

    ``ipus`` gives the IPU of each stage when a model comes back to an IPU: ``[0, 1, 0]``.

    >>> for tick in pipelined_inference(stages=2, micro=2):
    ...     print(tick)
    0F .
    1F 0F
    . 1F
    """
    positive(stages=stages, micro=micro)
    queues = [[Job(m, Kind.FORWARD, stage) for m in range(micro)] for stage in range(stages)]
    return clock(queues, worker_of_each(stages, ipus), lambda job: data_dependencies(job, stages))
