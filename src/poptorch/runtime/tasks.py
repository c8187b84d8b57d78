"""The task graph of one accumulation round (or of one inference call): what runs, and what it waits for.

The strategies differ only in the schedule that the tasks are taken from; the graph adds what the data require.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from poptorch.compiler.plan import Ordering, Plan
from poptorch.host.cost import WORTH_A_THREAD_SECONDS, estimated_work
from poptorch.schedule import (
    Job,
    Kind,
    Tick,
    one_f_one_b,
    parallel_phased,
    pipelined_inference,
    serial_phased,
    sharded,
)

_AHEAD = 1
"""How many micro-batches more than in the ideal schedule may be under way in a stage, so that no core waits."""


@dataclass(frozen=True)
class Task:
    """One job on one replica."""

    index: int
    job: Job
    replica: int
    ipu: int
    """Inside the replica."""

    stage: int | None
    """Which piece of the plan it runs; ``None`` for an exchange with streaming memory."""

    tick: int
    """When it runs in the ideal schedule."""

    members: int = 1
    """How many micro-batches it computes at once; the job's number is then that of the bundle."""

    @property
    def urgency(self) -> tuple[int, int, int]:
        """Of the tasks that are ready the smallest goes first: the oldest micro-batch, and its latest pass.

        With fewer cores than IPUs, micro-batches are then brought to an end before others begin, and fewer of them
        keep their activations than in the ideal schedule. Gradients come in the order in which they are added.
        """
        return self.job.micro, self.replica, -self.tick

    def __str__(self) -> str:
        return f"{self.job} on IPU {self.ipu} of replica {self.replica}"


@dataclass
class TaskGraph:
    """Tasks and the order among them."""

    tasks: list[Task] = field(default_factory=list)
    waits_for: list[set[int]] = field(default_factory=list)
    _successors: list[list[int]] | None = field(default=None, init=False, repr=False)

    def successors(self) -> list[list[int]]:
        """For each task, those that wait for it. Found once: a graph is run many times and does not change."""
        if self._successors is None or len(self._successors) != len(self.tasks):
            self._successors = self._find_successors()
        return self._successors

    def _find_successors(self) -> list[list[int]]:
        result: list[list[int]] = [[] for _ in self.tasks]
        for task, needed in enumerate(self.waits_for):
            for other in sorted(needed):
                result[other].append(task)
        return result

    def is_acyclic(self) -> bool:
        """Whether everything can run."""
        waiting = [len(w) for w in self.waits_for]
        successors = self.successors()
        ready = [i for i, count in enumerate(waiting) if not count]
        done = 0
        while ready:
            done += 1
            for following in successors[ready.pop()]:
                waiting[following] -= 1
                if not waiting[following]:
                    ready.append(following)
        return done == len(self.tasks)


def ideal_schedule(plan: Plan, micro: int, *, training: bool) -> list[Tick]:
    """The ticks that the strategy asks for, with the parts of the plan (for phased strategies: its phases)."""
    ipus = [part.ipu for part in plan.parts]
    parts = len(plan.parts)
    if plan.ordering is Ordering.PIPELINED:
        ticks = one_f_one_b(parts, micro, ipus) if training else pipelined_inference(parts, micro, ipus)
    elif plan.ordering is Ordering.SHARDED:
        ticks = sharded(parts, micro, ipus, training=training and not plan.whole)
    elif plan.ordering is Ordering.SERIAL_PHASED:
        ticks = serial_phased(
            len(plan.phases), micro, max(ipus) + 1, training=training, overlap=plan.overlap_loads
        )
    else:
        pairs = max(ipus) // 2 + 1
        ticks = parallel_phased(plan.phases[-1] + 1, micro, 2 * pairs, training=training)
    return list(ticks)


def width(plan: Plan, replicas: int) -> int:
    """How many tasks are to run at once, given cores: all that can, unless handing them over takes longer than they."""
    work = [estimated_work(stage.description.program) for stage in plan.stages]
    if sum(work) < WORTH_A_THREAD_SECONDS * len(work):
        return 1
    if plan.ordering is Ordering.PIPELINED:
        return len({p.ipu for p in plan.parts}) * replicas
    if plan.ordering is Ordering.SHARDED:
        return replicas
    return max(sum(p.phase == phase for p in plan.parts) for phase in plan.phases) * replicas


def build_tasks(plan: Plan, micro: int, replicas: int, *, training: bool, members: int = 1) -> TaskGraph:
    """The graph for ``micro`` micro-batches, or bundles of ``members``, on each of ``replicas`` replicas."""
    graph = _Builder(plan, ideal_schedule(plan, micro, training=training), replicas, members).build()
    if plan.carried and not graph.is_acyclic():
        # A buffer that a late piece writes and an early one reads lets no two micro-batches overlap.
        ipus = [part.ipu for part in plan.parts]
        ticks = list(sharded(len(plan.parts), micro, ipus, training=training and not plan.whole))
        graph = _Builder(plan, ticks, replicas, members, alone=True).build()
    assert graph.is_acyclic()
    return graph


class _Builder:
    """Follows a schedule and notes for each task what it must wait for."""

    def __init__(
        self, plan: Plan, ticks: Sequence[Tick], replicas: int, members: int = 1, alone: bool = False
    ) -> None:
        self._plan = plan
        self._ticks = ticks
        self._replicas = replicas
        self._members = members
        self._training = any(s.description.backward for s in plan.stages)
        self._one_at_a_time = alone or plan.ordering is not Ordering.PIPELINED
        self._phased = plan.ordering.is_phased and not alone
        self._free = not self._one_at_a_time and not any(s.is_sequential for s in plan.stages)
        self._graph = TaskGraph()
        self._stages = self._stages_by_job()
        self._by_slot = {s.description.slot: i for i, s in enumerate(plan.stages)}

    def _stages_by_job(self) -> dict[tuple[Kind, int], list[int]]:
        """The pieces that a job of the schedule stands for."""
        phases = self._plan.phases
        if self._plan.ordering is Ordering.PARALLEL_PHASED:
            phases = list(range(phases[-1] + 1))
        result: dict[tuple[Kind, int], list[int]] = {}
        for index, stage in enumerate(self._plan.stages):
            d = stage.description
            part = phases.index(self._plan.parts[d.part].phase) if self._phased else d.part
            result.setdefault((Kind.BACKWARD if d.backward else Kind.FORWARD, part), []).append(index)
        return result

    def build(self) -> TaskGraph:
        for replica in range(self._replicas):
            self._add_replica(replica)
        return self._graph

    def _add_replica(self, replica: int) -> None:
        on_worker: dict[int, list[int]] = {}
        done: dict[tuple[Kind, int], list[list[int]]] = {}  # the tasks of each job so far, by kind and part
        last_computed: list[int] = []
        where: dict[tuple[int, int], int] = {}  # (slot, micro-batch) -> task
        for now, tick in enumerate(self._ticks):
            for job, workers in _jobs_of(tick):
                computes = job.kind in (Kind.FORWARD, Kind.BACKWARD)
                if computes and self._free:
                    before = self._room(job, done)
                else:
                    before = {t for w in workers for t in on_worker.get(w, ())}
                if computes and self._one_at_a_time:
                    before |= set(last_computed)
                added = (
                    self._compute(job, replica, now, before, where)
                    if computes
                    else self._exchange(job, workers, replica, now, before)
                )
                if not added:
                    continue
                if computes:
                    last_computed = added
                    done.setdefault((job.kind, job.part), []).append(added)
                for worker in workers:
                    on_worker[worker] = added

    def _room(self, job: Job, done: Mapping[tuple[Kind, int], Sequence[list[int]]]) -> set[int]:
        """What must be over before a job may start, where micro-batches of one stage may run side by side.

        A pass that has its data may run at once. A forward pass waits for earlier micro-batches to be done with, so
        that there are hardly more of them under way than the schedule has. To wait for the latest two is enough,
        because the forward pass before the last waited for those before.
        """
        if job.kind is Kind.BACKWARD:
            return set()
        over = done.get((Kind.BACKWARD, job.part) if self._training else (Kind.FORWARD, job.part + 1), ())
        own = done.get((Kind.FORWARD, job.part), ())
        least = len(over) - _AHEAD
        latest = over[max(0, least - 2) : max(0, least)]
        return {task for tasks in (*latest, *own[-2:-1]) for task in tasks}

    def _compute(
        self, job: Job, replica: int, now: int, before: set[int], where: dict[tuple[int, int], int]
    ) -> list[int]:
        added = []
        for index in self._stages.get((job.kind, job.part), ()):
            stage = self._plan.stages[index].description
            needed = set(before)
            needed |= {where[slot, job.micro] for slot in stage.after}
            for carried in self._plan.carried:
                if stage.slot == carried.reader and job.micro:
                    needed |= self._tasks_of(where, carried.writer, job.micro - 1)
                if stage.slot == carried.writer:
                    needed |= self._tasks_of(where, carried.reader, job.micro)
            task = self._add(job, replica, self._plan.parts[stage.part].ipu, index, now, needed)
            where[stage.slot, job.micro] = task
            added.append(task)
        return added

    def _tasks_of(self, where: dict[tuple[int, int], int], slot: int, micro: int) -> set[int]:
        """The task of another slot; one that the schedule only has later makes the graph cyclic, and is seen."""
        if slot not in self._by_slot:
            return set()
        found = where.get((slot, micro))
        return {found} if found is not None else {len(self._graph.tasks)}

    def _exchange(self, job: Job, workers: Sequence[int], replica: int, now: int, before: set[int]) -> list[int]:
        return [self._add(job, replica, worker, None, now, before) for worker in workers]

    def _add(
        self, job: Job, replica: int, ipu: int, stage: int | None, now: int, waits_for: Iterable[int]
    ) -> int:
        index = len(self._graph.tasks)
        self._graph.tasks.append(Task(index, job, replica, ipu, stage, now, self._members))
        self._graph.waits_for.append(set(waits_for))
        return index


def _jobs_of(tick: Tick) -> list[tuple[Job, list[int]]]:
    """The jobs of a tick with the workers that share each."""
    jobs: dict[Job, list[int]] = {}
    for worker, job in enumerate(tick.jobs):
        if job is not None:
            jobs.setdefault(job, []).append(worker)
    return list(jobs.items())
