"""Parallel phases: one group of IPUs computes while the other loads."""

from __future__ import annotations

from collections.abc import Iterator

from poptorch.schedule.clock import positive
from poptorch.schedule.job import Tick
from poptorch.schedule.phases import in_phases


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
        raise ValueError(
            f"Parallel phases alternate between two equal groups: ipus must be even, not {ipus}."
        )
    groups = [range(0, ipus, 2), range(1, ipus, 2)]
    return in_phases(phases, micro, groups, training=training, overlap=True)
