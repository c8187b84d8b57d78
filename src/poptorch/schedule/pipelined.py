"""Pipelines: training with one forward, one backward, and the staircase of inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poptorch.schedule.clock import clock, data_dependencies, positive, worker_of_each
from poptorch.schedule.job import Job, Kind, Tick


def one_f_one_b(stages: int, micro: int, ipus: Sequence[int] | None = None) -> Iterator[Tick]:
    """Ticks of one accumulation round of ``micro`` micro-batches; the pipeline is empty before and after.

    Each stage fills the pipeline after it, then alternates forward and backward, then drains. Stage *s*
    keeps at most ``stages - s`` micro-batches. ``stages=2, micro=3``::

        IPU0 | 0F 1F .  0B 2F 1B .  2B
        IPU1 | .  0F 0B 1F 1B 2F 2B .

    ``ipus`` gives the IPU of each stage when a model comes back to an IPU: ``[0, 1, 0]``.

    >>> for tick in one_f_one_b(stages=2, micro=1):
    ...     print(tick)
    0F .
    . 0F
    . 0B
    0B .
    """
    positive(stages=stages, micro=micro)
    queues = [_order(stage, stages, micro) for stage in range(stages)]
    return clock(queues, worker_of_each(stages, ipus), lambda job: data_dependencies(job, stages))


def _order(stage: int, stages: int, micro: int) -> list[Job]:
    """What one stage does, in order: ``ahead`` forwards, then pairs, then the backwards that are left."""
    ahead = min(stages - stage - 1, micro)
    forward = [Job(m, Kind.FORWARD, stage) for m in range(micro)]
    backward = [Job(m, Kind.BACKWARD, stage) for m in range(micro)]
    pairs = [job for pair in zip(forward[ahead:], backward, strict=False) for job in pair]
    return forward[:ahead] + pairs + backward[micro - ahead :]


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
