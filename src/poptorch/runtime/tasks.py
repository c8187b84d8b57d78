"""The task graph of one accumulation round (or of one inference call): what runs, and what it waits for.

The strategies differ only in the schedule that the tasks are taken from; the graph adds what the data require.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from poptorch.compiler.passes.stages import StageProgram
from poptorch.compiler.passes.writes import Carried
from poptorch.compiler.plan import Ordering, Plan
from poptorch.executable.host_code import HostCode
from poptorch.program.graphs import acts_in_order
from poptorch.schedule import Job, Kind, Tick, sharded

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
    """Which stage of the plan it runs; ``None`` for an exchange with streaming memory."""

    tick: int
    """When it runs in the ideal schedule."""

    members: int = 1
    """How many micro-batches it computes at once; the job's number is then that of the group."""

    whole: bool = False
    """Whether it is both passes in one: a forward job of a model in one part that also runs backward."""

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
    elsewhere: frozenset[int] = frozenset()
    """Tasks that another process runs, and that others here wait for."""

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


@dataclass(frozen=True)
class Work:
    """What the tasks of a plan run."""

    stages: Sequence[StageProgram]
    carried: Sequence[Carried]
    sequential: bool
    """Whether micro-batches must pass some stage in order."""

    @staticmethod
    def of_host(code: HostCode) -> Work:
        """The stages as the host computes them."""
        descriptions = [stage.description for stage in code.stages]
        return Work(descriptions, code.carried, any(stage.is_sequential for stage in code.stages))

    @staticmethod
    def of_device(plan: Plan) -> Work:
        """The stages as IPUs compute them."""
        return Work(plan.stages, plan.carried, any(acts_in_order(stage.program) for stage in plan.stages))


def build_tasks(plan: Plan, work: Work, micro: int, replicas: int, *, training: bool, members: int = 1) -> TaskGraph:
    """The graph for ``micro`` micro-batches, or groups of ``members``, on each of ``replicas`` replicas."""
    whole = training and plan.whole  # the only stage of a model in one part is both passes
    backward = training and not whole
    graph = _Builder(plan, work, plan.schedule(micro, training=backward), replicas, members, whole=whole).build()
    if work.carried and not graph.is_acyclic():
        # A buffer that a late stage writes and an early one reads lets no two micro-batches overlap.
        ipus = [part.ipu for part in plan.parts]
        ticks = list(sharded(len(plan.parts), micro, ipus, training=backward))
        graph = _Builder(plan, work, ticks, replicas, members, whole=whole, alone=True).build()
    assert graph.is_acyclic()
    return graph


class _Builder:
    """Follows a schedule and notes for each task what it must wait for."""

    def __init__(
        self,
        plan: Plan,
        work: Work,
        ticks: Sequence[Tick],
        replicas: int,
        members: int,
        *,
        whole: bool,
        alone: bool = False,
    ) -> None:
        self._plan = plan
        self._work = work
        self._ticks = ticks
        self._replicas = replicas
        self._members = members
        self._whole = whole
        self._training = any(stage.backward for stage in work.stages)
        self._one_at_a_time = alone or plan.ordering is not Ordering.PIPELINED
        self._phased = plan.ordering.is_phased and not alone
        self._free = not self._one_at_a_time and not work.sequential
        self._graph = TaskGraph()
        self._stages = self._stages_by_job()
        self._by_slot = {stage.slot: i for i, stage in enumerate(work.stages)}

    def _stages_by_job(self) -> dict[tuple[Kind, int], list[int]]:
        """The stages that a job of the schedule stands for."""
        phases = self._plan.phases
        if self._plan.ordering is Ordering.PARALLEL_PHASED:
            phases = list(range(phases[-1] + 1))
        result: dict[tuple[Kind, int], list[int]] = {}
        for index, stage in enumerate(self._work.stages):
            part = phases.index(self._plan.parts[stage.part].phase) if self._phased else stage.part
            result.setdefault((Kind.BACKWARD if stage.backward else Kind.FORWARD, part), []).append(index)
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
            stage = self._work.stages[index]
            needed = set(before)
            needed |= {where[slot, job.micro] for slot in stage.after}
            for carried in self._work.carried:
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

    def _add(self, job: Job, replica: int, ipu: int, stage: int | None, now: int, waits_for: Iterable[int]) -> int:
        index = len(self._graph.tasks)
        self._graph.tasks.append(Task(index, job, replica, ipu, stage, now, self._members, self._whole))
        self._graph.waits_for.append(set(waits_for))
        return index


def _jobs_of(tick: Tick) -> list[tuple[Job, list[int]]]:
    """The jobs of a tick with the workers that share each."""
    jobs: dict[Job, list[int]] = {}
    for worker, job in enumerate(tick.jobs):
        if job is not None:
            jobs.setdefault(job, []).append(worker)
    return list(jobs.items())
