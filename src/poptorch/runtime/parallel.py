"""Running a plan: the tasks of every micro-batch and replica, the values between them, and what comes out."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from poptorch.compiler.passes.stages import StageProgram
from poptorch.devices.cores import CoreShare
from poptorch.executable.executable import Executable
from poptorch.executable.host_code import HostCode, HostStage
from poptorch.profiling.trace import Trace
from poptorch.program.loop import MicroBatch
from poptorch.program.opinfo import FIRST_ROUNDING_STREAM
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Role
from poptorch.runtime.call import Call
from poptorch.runtime.clock import CallClock, JobRecord, Moved
from poptorch.runtime.crossings import Crossings, crossings_of
from poptorch.runtime.device_memory import DeviceMemory
from poptorch.runtime.failures import FailedJob, note_job
from poptorch.runtime.faults import CallFaults
from poptorch.runtime.gradients import GradientSink
from poptorch.runtime.links import ReplicaLink
from poptorch.runtime.meeting import Meeting
from poptorch.runtime.residency import Residency
from poptorch.runtime.stage_messages import Mail
from poptorch.runtime.tasks import Task, TaskGraph, Work, build_tasks
from poptorch.runtime.values.random_source import RandomSource
from poptorch.runtime.values.weights import Weights
from poptorch.runtime.workers import Execute, Rest, nobody_else, run_tasks


class ParallelRunner:
    """Runs the stages of a plan on several IPUs, or several replicas, at the same time."""

    def __init__(self, executable: Executable, link: ReplicaLink | None = None, meeting: Meeting | None = None) -> None:
        device, code = executable.device, executable.code
        self.link = link
        """The processes that share the replicas of this one."""

        self.meeting = meeting
        """Where replicas exchange values in the middle of a micro-batch, if the program does."""

        self._device = device
        self._loop = code.loop
        self._training = device.program.training
        self._micro = self._loop.gradient_accumulation if self._training else self._loop.device_iterations
        groups = self._micro // self._loop.group_size
        self._rounds = self._loop.device_iterations if self._training else 1
        self.graph: TaskGraph = build_tasks(
            device.plan,
            Work.of_host(code),
            groups,
            self._loop.replicas,
            training=self._training,
            members=self._loop.group_size,
        )
        descriptions = [stage.description for stage in code.stages]
        self.crossings: Crossings | None = None
        """What passes between the processes that share replicas."""

        if device.blocks is not None:
            self.crossings = crossings_of(self.graph, descriptions, code.edges, device.blocks)
            self.graph = self.crossings.graph
        self._width = code.width
        self.edges = code.edges
        self._stages = code.stages
        self.bound: dict[int, BoundStage] = {}
        """The stages that this process runs, by number."""

        workers = CoreShare.of(self._width).workers
        self.gradients = GradientSink(executable, workers)
        self.residency = Residency(device)
        self.members = self._loop.members

    def scheduled_tasks(self) -> TaskGraph:
        """What IPUs run in a round, one micro-batch at a time."""
        plan = self._device.plan
        return build_tasks(plan, Work.of_device(plan), self._micro, self._loop.replicas, training=self._training)

    # -- memory --------------------------------------------------------------------------------------------------

    def bind(self, memory: DeviceMemory) -> None:
        """Connect every stage of every replica with the weights and buffers that it uses."""
        constants = self._device.program.constants
        self.bound = {
            number: BoundStage.of(stage, memory, self._loop.replicas, constants)
            for number, stage in enumerate(self._stages)
            if self._device.runs(stage.description)
        }

    def install(self, code: HostCode) -> None:
        """Run other code for the same stages."""
        self._stages = code.stages
        for number, bound in self.bound.items():  # none before weights are there
            bound.stage = code.stages[number]

    def weights_changed(self) -> None:
        """Copies of the weights in another type are outdated."""
        for stage in self.bound.values():
            for weights in stage.parameters:
                weights.changed()

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, call: Call, clock: CallClock, faults: CallFaults | None = None) -> None:
        """All device iterations. Whatever happens, nothing of this call stays."""
        share = CoreShare.of(self._width)
        self.gradients.begin(call.exchange)
        try:
            for iteration in range(self._rounds):
                self._round(iteration, call, clock, share, faults)
        finally:
            self.gradients.reset()
        if self.link is not None:
            clock.complete(time.perf_counter())

    def _round(self, iteration: int, call: Call, clock: CallClock, share: CoreShare, faults: CallFaults | None) -> None:
        work = _Round(self, call, iteration)
        execute: Execute = work.execute
        if faults is not None:
            execute = faults.before_tasks(execute, partial(self.first_of, iteration))
        records = work.completed(self._run(execute, share, call.trace, work))
        clock.add(records)
        if call.trace.active:
            for span in clock.spans(records):
                call.trace.add(span)
        self.residency.measured(work.peak_bytes)
        if call.update is not None:
            call.update(self.gradients.take())

    def _run(self, execute: Execute, share: CoreShare, trace: Trace, work: _Round) -> list[JobRecord]:
        """Run the tasks of a round that belong to this process."""
        mail = work.mail
        failed = nobody_else if self.meeting is None else self.meeting.abandon
        if mail is None:
            return run_tasks(self.graph, execute, share, trace, failed=failed)
        try:
            records = run_tasks(self.graph, execute, share, trace, mail.open, failed)
            mail.close()
            return records
        except BaseException as error:
            mail.abandon(error)
            raise

    def label_of(self, stage: StageProgram) -> str:
        """For people: which pass of which part a stage is; empty for a model in one part."""
        return "" if self._device.plan.whole else stage.label

    def first_of(self, iteration: int, task: Task) -> MicroBatch:
        """The first micro-batch of a task of round ``iteration``."""
        first = task.job.micro * task.members
        return MicroBatch(iteration, first, task.replica) if self._training else MicroBatch(first, 0, task.replica)


@dataclass
class BoundStage:
    """A stage with the weights, buffers and constants that it uses."""

    stage: HostStage
    parameters: list[Weights]
    """By replica; replicas with equal weights share one list."""

    buffers: list[list[torch.Tensor]]
    constants: list[torch.Tensor]
    uses_loss_scale: bool
    positions: dict[OutputKind, range]
    """Where the outputs of each kind are among those of the code."""

    @staticmethod
    def of(stage: HostStage, memory: DeviceMemory, replicas: int, constants: Mapping[str, torch.Tensor]) -> BoundStage:
        lists: dict[tuple[int, ...], Weights] = {}
        parameters = []
        for replica in range(replicas):
            tensors = [memory.replica_parameter(replica, name) for name in stage.parameters]
            parameters.append(lists.setdefault(tuple(t.data_ptr() for t in tensors), Weights(tensors)))
        program = stage.description.program
        return BoundStage(
            stage,
            parameters,
            [[memory.replica_buffer(r, name) for name in stage.buffers] for r in range(replicas)],
            [constants[p.name] for p in program.ports_of(Role.CONSTANT)],
            bool(program.ports_of(Role.LOSS_SCALE)),
            {kind: stage.positions_of(kind) for kind in OutputKind},
        )


class _Round:
    """The values under way in one round."""

    def __init__(self, runner: ParallelRunner, call: Call, iteration: int) -> None:
        self._runner = runner
        self._call = call
        self._inputs_of: dict[int, Moved] = {}
        self._outputs_of: dict[int, Moved] = {}
        """When a task took its inputs, and gave its results, by its index."""

        self._iteration = iteration
        self._edges = runner.edges
        self._values: dict[tuple[int, int, int], torch.Tensor] = {}  # (edge, micro-batch, replica)
        self._uses: dict[tuple[int, int, int], int] = {}
        self._lock = threading.Lock()
        self._live = 0
        self.peak_bytes = 0
        self.mail: Mail | None = None
        """What goes to other processes, and comes from them."""

        if runner.link is not None and runner.crossings is not None:
            self._local_uses = runner.crossings.local_uses
            self.mail = Mail(runner.link, runner.crossings, runner.edges, self._deliver)
        else:
            self._local_uses = {index: len(edge.consumers) for index, edge in enumerate(runner.edges)}

    def completed(self, records: Sequence[JobRecord]) -> list[JobRecord]:
        """The records of the tasks, with their micro-batches and with what moved between them and the host."""
        runner = self._runner
        return [
            record.but(
                members=runner.members(runner.first_of(self._iteration, record.task)),
                inputs=self._inputs_of.get(record.task.index),
                outputs=self._outputs_of.get(record.task.index),
            )
            for record in records
        ]

    def execute(self, task: Task) -> Rest | None:
        """Run one task on the current thread. What is left to do is to add its gradients, if it has any."""
        if task.stage is None:
            self._runner.residency.exchange(task)
            return None
        bound = self._runner.bound[task.stage]
        first = self._runner.first_of(self._iteration, task)
        d, meeting = bound.stage.description, self._runner.meeting
        try:
            with contextlib.nullcontext() if meeting is None else meeting.taking_part(first, d.slot):
                outputs = self._computed(task, first, bound)
        except Exception as error:
            note_job(error, FailedJob(self._runner.members(first), self._runner.label_of(d)))
            raise
        return self._distribute(task, first, bound, outputs)

    def _computed(self, task: Task, first: MicroBatch, bound: BoundStage) -> Sequence[torch.Tensor]:
        """What the code of a stage makes of its inputs."""
        call, d = self._call, bound.stage.description
        return bound.stage.code.run(
            bound.parameters[task.replica],
            bound.buffers[task.replica],
            bound.constants,
            # An iterator: the generated code is then the only owner of what nobody else needs.
            self._inputs(task, first, bound.stage),
            call.loss_scale if bound.uses_loss_scale else (),
            call.random(first) if task.members > 1 else _StageRandom(call.random(first), d.slot),
            *((partial(self._hand, task),) if bound.stage.buckets else ()),
        )

    def _inputs(self, task: Task, first: MicroBatch, stage: HostStage) -> Iterator[torch.Tensor]:
        d = stage.description
        taken: list[torch.Tensor] = []
        if d.inputs or d.slot == 0:
            asked = time.perf_counter()
            block = self._call.inputs(first)
            taken += [block[i] for i in d.inputs]
            self._inputs_of[task.index] = asked, time.perf_counter()
        with self._lock:
            for edge in d.receives:
                key = edge, task.job.micro, task.replica
                taken.append(self._values[key])
                self._uses[key] -= 1
                if not self._uses[key]:
                    del self._values[key], self._uses[key]
                    self._live -= self._edges[edge].num_bytes
        return iter(taken)

    def _distribute(
        self, task: Task, first: MicroBatch, bound: BoundStage, outputs: Sequence[torch.Tensor]
    ) -> Rest | None:
        d, call = bound.stage.description, self._call

        def values(kind: OutputKind) -> Sequence[torch.Tensor]:
            at = bound.positions[kind]
            return outputs[at.start : at.stop]

        sent = list(zip(d.sends, values(OutputKind.SEND), strict=True))
        self._deliver(task, sent)
        if self.mail is not None:
            self.mail.post(task, dict(sent))
        if d.results:
            members, sent_at = self._runner.members(first), time.perf_counter()
            for index, value in zip(d.results, values(OutputKind.RESULT), strict=True):
                call.results[index].put_all(members, value)
            self._outputs_of[task.index] = sent_at, time.perf_counter()
        for index, value in zip(d.anchors, values(OutputKind.ANCHOR), strict=True):
            call.anchors[index].put(first, value)
        for value in values(OutputKind.COUNT):
            call.counts.put(first, value)
        if not d.gradients or bound.stage.buckets:
            return None
        assert task.stage is not None
        add = self._runner.gradients.add
        return partial(add, task.stage, 0, task.job.micro, task.replica, values(OutputKind.GRADIENT))

    def _hand(self, task: Task, bucket: int, gradients: Sequence[torch.Tensor]) -> None:
        """Add the gradients that a task hands out before it is done; what is left to do is done at once."""
        assert task.stage is not None
        for rest in self._runner.gradients.add(task.stage, bucket, task.job.micro, task.replica, gradients):
            rest()

    def _deliver(self, task: Task, sent: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Keep values for the stages of this process that use them."""
        with self._lock:
            for edge, value in sent:
                if self._local_uses[edge]:
                    key = edge, task.job.micro, task.replica
                    self._values[key] = value
                    self._uses[key] = self._local_uses[edge]
                    self._live += self._edges[edge].num_bytes
            self.peak_bytes = max(self.peak_bytes, self._live)


class _StageRandom(RandomSource):
    """The micro-batch's random numbers; those for rounding, which each stage counts from the start, differ by stage."""

    def __init__(self, source: RandomSource, slot: int) -> None:
        super().__init__(source.key)
        self._slot = slot

    def __call__(self, stream: int) -> torch.Generator:
        if stream >= FIRST_ROUNDING_STREAM:
            stream += self._slot << 40
        return super().__call__(stream)
