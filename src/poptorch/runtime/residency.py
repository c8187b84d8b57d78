"""Which phases are on chip, how much moved to get them there, and what was kept between the passes."""

from __future__ import annotations

import threading

from poptorch.executable.executable import Executable
from poptorch.executable.plan import Ordering, Plan
from poptorch.runtime.schedule import Kind
from poptorch.runtime.tasks import Task


class Residency:
    """Follows the exchanges of a phased model and the values under way of any model, call after call."""

    def __init__(self, executable: Executable, plan: Plan) -> None:
        self._memory = executable.memory
        self._parts = self._parts_by_place(plan)
        self._lock = threading.Lock()
        self.held: dict[tuple[int, int], int | None] = {}
        """The phase that each IPU of each replica holds, by (replica, IPU); ``None``: nothing."""

        self.exchanges = 0
        """How many times a phase came in or left."""

        self.loaded_bytes = 0
        self.stored_bytes = 0
        self.peak_stash_bytes = 0
        """The most bytes of values between parts that were alive at once, over all micro-batches and replicas."""

    @staticmethod
    def _parts_by_place(plan: Plan) -> dict[tuple[int, int], list[int]]:
        """The parts of each phase (as the schedule counts them) on each IPU."""
        if not plan.ordering.is_phased:
            return {}
        numbers = plan.phases if plan.ordering is Ordering.SERIAL_PHASED else range(plan.phases[-1] + 1)
        places: dict[tuple[int, int], list[int]] = {}
        for index, part in enumerate(plan.parts):
            places.setdefault((list(numbers).index(part.phase), part.ipu), []).append(index)
        return places

    def exchange(self, task: Task) -> None:
        """A phase comes in, and with it the one before goes out; or the last one leaves."""
        with self._lock:
            self.exchanges += 1
            place = task.replica, task.ipu
            leaving = self.held.get(place)
            if leaving is not None:
                self.stored_bytes += self._bytes(leaving, task.ipu)
            loads = task.job.kind is Kind.LOAD
            self.held[place] = task.job.part if loads else None
            if loads:
                self.loaded_bytes += self._bytes(task.job.part, task.ipu)

    def _bytes(self, phase: int, ipu: int) -> int:
        return sum(self._memory.loaded_by(part) for part in self._parts.get((phase, ipu), ()))

    def measured(self, peak_bytes: int) -> None:
        """Note the peak of one round."""
        self.peak_stash_bytes = max(self.peak_stash_bytes, peak_bytes)
