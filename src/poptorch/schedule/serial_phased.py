"""Serial phases: one group of IPUs holds one phase after the other."""

from __future__ import annotations

from collections.abc import Iterator

from poptorch.schedule.clock import positive
from poptorch.schedule.job import Tick
from poptorch.schedule.phases import in_phases


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
    return in_phases(phases, micro, [range(ipus)], training=training, overlap=overlap)
