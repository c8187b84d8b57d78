"""Running a plan: the tasks of every micro-batch and replica, the values between them, and what comes out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from poptorch.compiler.plan import Plan, Stage
from poptorch.executable.executable import Executable
from poptorch.host.interpret.stochastic import FIRST_STREAM
from poptorch.program.loop import Tick
from poptorch.runtime.accumulate import OrderedGradients
from poptorch.runtime.residency import Residency
from poptorch.runtime.stamps import Stamps
from poptorch.runtime.streams import OutputStream
from poptorch.runtime.tasks import Task, TaskGraph, build_tasks, ideal_schedule, width
from poptorch.runtime.values.random_source import RandomSource
from poptorch.runtime.values.weights import Weights
from poptorch.runtime.workers import Rest, Share, Span, run_tasks


@dataclass(frozen=True)
class Memory:
    """The device memory that the stages of a plan look at."""

    parameters: Callable[[int, str], torch.Tensor]
    """By replica and name."""

    buffers: Callable[[int, str], torch.Tensor]


@dataclass
class Call:
    """What one call brings along and takes away."""

    micro_batch: Callable[[Tick], Sequence[torch.Tensor]]
    """The inputs of the bundle that begins with a micro-batch."""

    random: Callable[[Tick], RandomSource]
    loss_scale: Sequence[torch.Tensor]
    results: list[OutputStream]
    anchors: list[OutputStream]
    """For the anchored values that the program computes, in its order."""

    stamps: Stamps
    update: Callable[[Mapping[str, torch.Tensor]], None] | None


class ParallelRunner:
    """Runs an executable that has a plan."""

    def __init__(self, executable: Executable, plan: Plan) -> None:
        self.plan = plan
        self._executable = executable
        self._loop = executable.loop
        self._training = executable.program.training
        self._micro = self._loop.gradient_accumulation if self._training else self._loop.device_iterations
        bundles = self._micro // self._loop.bundle
        self._rounds = self._loop.device_iterations if self._training else 1
        self.graph: TaskGraph = build_tasks(
            plan, bundles, self._loop.replicas, training=self._training, members=self._loop.bundle
        )
        self.ideal = ideal_schedule(plan, self._micro, training=self._training)
        self._width = width(plan, self._loop.replicas)
        self.bound: list[_BoundStage] = []
        workers = Share.of(self._width).workers
        self.gradients = OrderedGradients(executable, [s.description.gradients for s in plan.stages], workers)
        self.residency = Residency(executable, plan)
        self.members = self._loop.members
        self.rounds: list[list[Span]] = []
        """What ran where and when in the latest call, one list for each accumulation round."""

    def scheduled_tasks(self) -> TaskGraph:
        """What IPUs run in a round, one micro-batch at a time."""
        return build_tasks(self.plan, self._micro, self._loop.replicas, training=self._training)

    # -- memory --------------------------------------------------------------------------------------------------

    def bind(self, memory: Memory) -> None:
        """Connect every stage of every replica with the weights and buffers that it uses."""
        constants = self._executable.program.constants
        self.bound = [_BoundStage.of(s, memory, self._loop.replicas, constants) for s in self.plan.stages]

    def weights_changed(self) -> None:
        """Copies of the weights in another type are outdated."""
        for stage in self.bound:
            for weights in stage.parameters:
                weights.changed()

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, call: Call) -> None:
        """All device iterations. Whatever happens, nothing of this call is left behind."""
        share = Share.of(self._width)
        self.rounds = []
        try:
            for iteration in range(self._rounds):
                self._round(iteration, call, share)
        finally:
            self.gradients.reset()

    def _round(self, iteration: int, call: Call, share: Share) -> None:
        work = _Round(self, call, iteration)
        self.rounds.append(run_tasks(self.graph, work.execute, share))
        self.residency.measured(work.peak_bytes)
        if call.update is not None:
            call.update(self.gradients.take())

    def tick(self, iteration: int, task: Task) -> Tick:
        """The first micro-batch of a task of round ``iteration``."""
        first = task.job.micro * task.members
        return Tick(iteration, first, task.replica) if self._training else Tick(first, 0, task.replica)


@dataclass
class _BoundStage:
    stage: Stage
    parameters: list[Weights]
    """By replica; replicas with equal weights share one list."""

    buffers: list[list[torch.Tensor]]
    constants: list[torch.Tensor]
    uses_loss_scale: bool

    @staticmethod
    def of(stage: Stage, memory: Memory, replicas: int, constants: Mapping[str, torch.Tensor]) -> _BoundStage:
        from poptorch.program.program import Role

        lists: dict[tuple[int, ...], Weights] = {}
        parameters = []
        for replica in range(replicas):
            tensors = [memory.parameters(replica, name) for name in stage.parameters]
            parameters.append(lists.setdefault(tuple(t.data_ptr() for t in tensors), Weights(tensors)))
        program = stage.description.program
        return _BoundStage(
            stage,
            parameters,
            [[memory.buffers(r, name) for name in stage.buffers] for r in range(replicas)],
            [constants[p.name] for p in program.ports_of(Role.CONSTANT)],
            bool(program.ports_of(Role.LOSS_SCALE)),
        )


class _Round:
    """The values under way in one round."""

    def __init__(self, runner: ParallelRunner, call: Call, iteration: int) -> None:
        self._runner = runner
        self._call = call
        self._iteration = iteration
        self._edges = runner.plan.edges
        self._values: dict[tuple[int, int, int], torch.Tensor] = {}  # (edge, micro-batch, replica)
        self._uses: dict[tuple[int, int, int], int] = {}
        self._lock = threading.Lock()
        self._live = 0
        self.peak_bytes = 0

    def execute(self, task: Task) -> Rest | None:
        """Run one task on the current thread. What is left to do is to add its gradients, if it has any."""
        if task.stage is None:
            self._runner.residency.exchange(task)
            return None
        bound = self._runner.bound[task.stage]
        tick = self._runner.tick(self._iteration, task)
        call, d = self._call, bound.stage.description
        outputs = bound.stage.generated.run(
            bound.parameters[task.replica],
            bound.buffers[task.replica],
            bound.constants,
            # An iterator: the generated code is then the only owner of what nobody else needs.
            self._inputs(task, tick, bound.stage),
            call.loss_scale if bound.uses_loss_scale else (),
            call.random(tick) if task.members > 1 else _StageRandom(call.random(tick), d.slot),
        )
        return self._distribute(task, tick, bound.stage, outputs)

    def _inputs(self, task: Task, tick: Tick, stage: Stage) -> Iterator[torch.Tensor]:
        d, stamps = stage.description, self._call.stamps
        taken: list[torch.Tensor] = []
        if d.inputs or d.slot == 0:
            members = self._runner.members(tick)
            stamps.input(members)
            block = self._call.micro_batch(tick)
            taken += [block[i] for i in d.inputs]
            stamps.input_complete(members)
        with self._lock:
            for edge in d.receives:
                key = edge, task.job.micro, task.replica
                taken.append(self._values[key])
                self._uses[key] -= 1
                if not self._uses[key]:
                    del self._values[key], self._uses[key]
                    self._live -= self._edges[edge].num_bytes
        return iter(taken)

    def _distribute(self, task: Task, tick: Tick, stage: Stage, outputs: Sequence[torch.Tensor]) -> Rest | None:
        d, call = stage.description, self._call
        sent = len(d.sends)
        results = sent + len(d.results)
        gradients = results + len(d.gradients)
        with self._lock:
            for edge, value in zip(d.sends, outputs[:sent], strict=True):
                key = edge, task.job.micro, task.replica
                self._values[key] = value
                self._uses[key] = len(self._edges[edge].consumers)
                self._live += self._edges[edge].num_bytes
            self.peak_bytes = max(self.peak_bytes, self._live)
        if d.results:
            members = self._runner.members(tick)
            call.stamps.output(members)
            for index, value in zip(d.results, outputs[sent:results], strict=True):
                call.results[index].put_all(members, value)
            call.stamps.output_complete(members)
        for index, value in zip(d.anchors, outputs[gradients:], strict=True):
            call.anchors[index].put(tick, value)
        if not d.gradients:
            return None
        assert task.stage is not None
        add = self._runner.gradients.add
        return partial(add, task.stage, task.job.micro, task.replica, outputs[results:gradients])


class _StageRandom(RandomSource):
    """The micro-batch's random numbers; those for rounding, which each stage counts from the start, differ by stage."""

    def __init__(self, source: RandomSource, slot: int) -> None:
        super().__init__(source.key)
        self._slot = slot

    def __call__(self, stream: int) -> torch.Generator:
        if stream >= FIRST_STREAM:
            stream += self._slot << 40
        return super().__call__(stream)
