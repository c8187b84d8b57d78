"""Which tensors are on chip and which are in streaming memory, phase by phase, and what is kept between passes."""

from __future__ import annotations

import threading

from poptorch.executable.executable import Executable
from poptorch.executable.plan import Plan
from poptorch.runtime.schedule import Kind
from poptorch.runtime.tasks import Task


class Residency:
    """Follows the exchanges of a phased model and the values under way of any model."""

    def __init__(self, executable: Executable, plan: Plan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self.held: dict[tuple[int, int], int | None] = {}
        """The phase that each IPU of each replica holds, by (replica, IPU)."""

        self.exchanges = 0
        self.peak_stash_bytes = 0
        """The most bytes of edges that were alive at once, over all micro-batches and replicas of the last call."""

    def exchange(self, task: Task) -> None:
        """A phase comes in, or leaves."""
        with self._lock:
            self.exchanges += 1
            key = task.replica, task.ipu
            self.held[key] = task.job.part if task.job.kind is Kind.LOAD else None

    def measured(self, peak_bytes: int) -> None:
        """Note the peak of one round."""
        self.peak_stash_bytes = max(self.peak_stash_bytes, peak_bytes)
