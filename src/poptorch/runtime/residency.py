"""Which phases are on chip, how much moved to get them there, and what was kept between the passes."""

from __future__ import annotations

import threading

from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.passes.stages import StageProgram
from poptorch.compiler.plan import Ordering, Plan
from poptorch.program.footprint import working_bytes
from poptorch.runtime.tasks import Task, TaskGraph
from poptorch.schedule import Kind


class Residency:
    """Follows the exchanges of a phased model and the values under way of any model, call after call."""

    def __init__(self, device: DeviceProgram) -> None:
        self._memory = device.memory
        self._parts = self._parts_by_place(device.plan)
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


def scheduled_activation_bytes(plan: Plan, graph: TaskGraph) -> int:
    """The most bytes of activations alive at once on IPUs, on all replicas together, where every task runs in its tick.

    ``graph`` has the tasks of IPUs (:meth:`~poptorch.runtime.tasks.Work.of_device`). A value between stages lives from
    the tick that makes it to the end of the last tick that uses it. Beside it there
    is what each running stage needs for itself: where a forward pass is run again, its values are alive for a second
    time, on all IPUs at once.
    """
    edges = plan.edges
    inside = {stage.slot: working_bytes(stage.program) for stage in plan.stages}
    ticks: dict[int, list[tuple[StageProgram, Task]]] = {}
    for task in graph.tasks:
        if task.stage is not None:
            ticks.setdefault(task.tick, []).append((plan.stages[task.stage], task))
    left: dict[tuple[int, int, int], int] = {}
    live = peak = 0
    for now in sorted(ticks):
        for stage, task in ticks[now]:
            for edge in stage.sends:
                left[edge, task.job.micro, task.replica] = len(edges[edge].consumers)
                live += edges[edge].num_bytes
        peak = max(peak, live + sum(inside[stage.slot] for stage, _ in ticks[now]))
        for stage, task in ticks[now]:
            for edge in stage.receives:
                key = edge, task.job.micro, task.replica
                left[key] -= 1
                if not left[key]:
                    live -= edges[edge].num_bytes
    return peak
