"""The engine: an executable with its device memory, running whole calls without any of the user's Python."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

import torch

from poptorch.enums import OutputMode
from poptorch.executable.executable import Executable
from poptorch.executable.host_code import HostCode
from poptorch.profiling.trace import Listeners
from poptorch.program.anchors import Anchor, Held
from poptorch.program.graphs import exchanges_values
from poptorch.program.loop import MicroBatch
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Role, value_of
from poptorch.program.update import State
from poptorch.runtime.call import Call, Gradients, input_blocks, synthetic_inputs
from poptorch.runtime.clock import CallClock, JobRecord
from poptorch.runtime.device_memory import DeviceMemory
from poptorch.runtime.exchange import GradientExchange, LocalExchange
from poptorch.runtime.faults import faults_of
from poptorch.runtime.heap import keep_freed_memory
from poptorch.runtime.links import ReplicaLink
from poptorch.runtime.loss_scale import LossScale
from poptorch.runtime.meeting import Meeting, Network
from poptorch.runtime.parallel import ParallelRunner
from poptorch.runtime.random_numbers import RandomNumbers
from poptorch.runtime.rounds import RoundExchange
from poptorch.runtime.sequential import SequentialRunner
from poptorch.runtime.sharing import Sharing
from poptorch.runtime.streams import OutputStream, type_of_sum
from poptorch.runtime.updater import Updater
from poptorch.schedule import Tick


class Engine:
    """Device memory, the optimizer's state, random numbers, and the runner that uses them."""

    def __init__(
        self,
        executable: Executable,
        exchange: GradientExchange | None = None,
        link: ReplicaLink | None = None,
        network: Network | None = None,
    ) -> None:
        keep_freed_memory()
        device, loop = executable.device, executable.code.loop
        self.executable = executable
        self.memory = DeviceMemory(executable)
        self.random = RandomNumbers(loop)
        self.scale = LossScale(device.watch.elements * loop.all_micro_batches_per_update)
        self.updater = Updater(executable, self.memory, self.scale)
        self.exchange: GradientExchange = LocalExchange() if exchange is None else exchange
        self.trace = Listeners()
        """Where spans of calls go; it stays this one."""

        inputs, results = len(device.program.ports_of(Role.INPUT)), len(device.program.results)
        self.clock = CallClock(executable.code.loop, inputs, results, whole=device.plan.whole)
        """When the jobs of the latest call ran."""

        self.anchored: dict[str, torch.Tensor] = {}
        """The anchored values of the latest call."""

        self.meeting = None
        """Where replicas exchange values in the middle of a micro-batch, if the program does."""

        if loop.replicas_of_job > 1 and exchanges_values(device.undivided):
            self.meeting = Meeting(loop, network)
        self.sequential = SequentialRunner(executable, self.memory, self.meeting)
        self.parallel = None if executable.code.alone else ParallelRunner(executable, link, self.meeting)
        """Runs the stages of a model on several IPUs, or several replicas, at the same time."""

        self._sharing = None
        if link is not None and device.blocks is not None:
            self._sharing = Sharing(executable, device.blocks, link)
        if self.parallel is not None:
            self.memory.on_change(self.parallel.weights_changed)
        self._faults = faults_of(executable)
        once = self._is_once()
        self._simple = once and not device.settings.training
        self._simple_step = once and device.settings.training and loop.multiplicity() == 1
        """Whether code that updates the weights itself has nothing around it."""

    def _is_once(self) -> bool:
        """One micro-batch a call: the loop has nothing to do."""
        loop, settings = self.executable.code.loop, self.executable.device.settings
        once = loop.device_iterations == loop.gradient_accumulation == loop.replicas == 1
        if once and loop.output_mode is OutputMode.Sum:  # a sum of one has the type of a sum
            types = [value_of(node).dtype for node in self.executable.program.values_of(OutputKind.RESULT)]
            once = all(type_of_sum(dtype) is dtype for dtype in types)
        plain = not settings.anchors and not settings.synthetic_data and self._sharing is None
        return once and plain and self.parallel is None and self._faults is None and self.meeting is None

    def install(self, code: HostCode) -> None:
        """Run other code for the same program from the next call on."""
        self.executable = dataclasses.replace(self.executable, code=code)
        self.sequential.install(code)
        if self.parallel is not None:
            self.parallel.install(code)
        if code.formats:
            self.updater.arrange(code)

    # -- what the host writes and reads --------------------------------------------------------------------------

    def upload(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy host parameters and buffers to the device; every replica starts from the same values."""
        if not self.memory.is_empty:
            self.memory.write(tensors)
            return
        self.memory.allocate(tensors)
        self.updater.arrange(self.executable.code)
        if self.parallel is not None:
            self.parallel.bind(self.memory)

    def upload_some(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy the host parameters and buffers of these names to the device, which has been loaded before."""
        self.memory.write_some(tensors)

    def written(self) -> frozenset[str]:
        """The names of the parameters and buffers that the program changes."""
        program, update = self.executable.program, self.executable.update
        return frozenset([*(port.name for port in program.mutated()), *(() if update is None else update.names)])

    def upload_buffers(self, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> None:
        """Copy some host buffers to the device."""
        self.memory.write_buffers(tensors, names)

    def download(self) -> dict[str, torch.Tensor]:
        """Device parameters and buffers by name (not copied; those of the first replica)."""
        return self.memory.read()

    def fetch(self) -> dict[str, torch.Tensor]:
        """As :meth:`download`, and where processes share replicas, what the others have, if the host has room for it.

        All processes that share replicas have to ask for it.
        """
        return self.download() if self._sharing is None else self._sharing.fetch(self.memory)

    def share_weights(self) -> None:
        """Make weights that several processes use equal to those of the process that updates them."""
        if self._sharing is not None:
            self._sharing.share_weights(self.memory)

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """Device parameters by name (not copied)."""
        return self.memory.parameters

    @property
    def optimizer_state(self) -> list[State]:
        """The state of each parameter group."""
        return self.updater.state

    @optimizer_state.setter
    def optimizer_state(self, states: list[State]) -> None:
        self.updater.set_state(states, self.executable.code)

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """One call: all device iterations, accumulation steps, replicas and weight updates. Returns the results."""
        seed = self.random.fix()
        if self._simple:
            return self._run_once(inputs)
        updates_itself = self._simple_step and self.executable.code.step is not None
        if updates_itself and self.exchange.is_local and self.scale.scaler is None:
            return self._run_step(inputs)
        mode = self.executable.device.settings.synthetic_data
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            self.scale.begin()
            values = self._run(synthetic_inputs(inputs, mode, seed))
            # With synthetic data nothing is sent to the host.
            return [torch.zeros_like(v) for v in values] if mode else values

    def _run_once(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        clock, now = self.clock, time.perf_counter
        started = now()
        random = self.random.of_group(self.random.position, 0)
        grad_enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # as torch.no_grad, without its Python frames
        try:
            with torch._C._AutoDispatchBelowAutograd():
                outputs = self.sequential.run_once(inputs, random)
        finally:
            torch._C._set_grad_enabled(grad_enabled)
        self.random.position += 1
        ended = now()
        clock.once(started, ended)
        if self.trace.active:
            for span in clock.spans():
                self.trace.add(span)
        return list(outputs)

    def _run_step(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """One micro-batch, by code that updates the weights."""
        random, clock, now = self.random, self.clock, time.perf_counter
        grad_enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # as in _run_once
        try:
            with torch._C._AutoDispatchBelowAutograd():
                self.scale.begin()
                numbers = random.of_group(random.position, 0)
                arguments = self.updater.step_arguments()
                started = now()
                outputs = self.sequential.run_step(inputs, self.scale.current, numbers, arguments)
                clock.once(started, now())
        finally:
            torch._C._set_grad_enabled(grad_enabled)
        random.position += 1
        if self.trace.active:
            for span in clock.spans():
                self.trace.add(span)
        return list(outputs[: len(self.executable.program.results)])

    def _run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        loop, settings = self.executable.code.loop, self.executable.device.settings
        results = [OutputStream(loop) for _ in self.executable.program.results]
        anchors = {a: OutputStream(loop, a.mode, a.period) for a in settings.anchors}
        first = self.random.position
        call = self._call(inputs, results, anchors)
        if self.meeting is not None:
            self.meeting.begin()
        try:
            self._execute(call, silent=settings.synthetic_data != 0)
        except BaseException as error:
            if self.meeting is not None:
                self.meeting.abandon(error)
            if call.exchange is not None:
                call.exchange.abandon()
            raise
        if self.executable.update is None:
            for iteration in range(loop.device_iterations):
                self.anchor_held(iteration, anchors, updated=False)
                self.anchor_held(iteration, anchors, updated=True)
        self.random.position = first + loop.device_iterations * loop.gradient_accumulation
        if self._sharing is not None:
            self.anchored = self._sharing.anchors(anchors)
            return self._sharing.results(results)
        self.anchored = {anchor.short_name: stream.take() for anchor, stream in anchors.items()}
        return [stream.take() for stream in results]

    def _call(
        self, inputs: Sequence[torch.Tensor], results: list[OutputStream], anchors: Mapping[Anchor, OutputStream]
    ) -> Call:
        loop, random = self.executable.code.loop, self.random
        blocks = input_blocks(loop, inputs)
        first = random.position
        rounds = _Rounds(self, anchors)
        return Call(
            inputs=lambda micro_batch: blocks[loop.input_block(micro_batch)],
            random=lambda micro_batch: random.of_group(first + loop.position(micro_batch), micro_batch.replica),
            loss_scale=self.scale.current,
            results=results,
            anchors=[stream for anchor, stream in anchors.items() if anchor.held is None],
            counts=self.scale.tally,
            update=rounds.update if self.executable.update is not None else None,
            updated=rounds.updated,
            trace=self.trace,
            exchange=self._round_exchange(),
        )

    def _round_exchange(self) -> RoundExchange | None:
        if self.exchange.is_local or self.executable.update is None:
            return None
        return RoundExchange(self.exchange, self.executable, self.trace)

    def _execute(self, call: Call, silent: bool) -> None:
        """Run a call and keep its times; ``silent``: nothing moves between host and device."""
        clock = self.clock
        clock.begin(silent=silent)
        faults = None if self._faults is None else self._faults.next_call()
        if self.parallel is not None:
            self.parallel.run(call, clock, faults)
        else:
            if faults is not None:
                call = faults.before_groups(call)
            joined = self.executable.code.step is not None and self.scale.scaler is None and self.exchange.is_local
            self.sequential.run(call, clock, self.updater.step_arguments() if joined else None)

    def anchor_held(self, iteration: int, anchors: Mapping[Anchor, OutputStream], updated: bool) -> None:
        """Anchored weights and state: the micro-batches of the last accumulation step see them updated, others not."""
        loop = self.executable.code.loop
        last = loop.gradient_accumulation - 1
        for anchor, stream in anchors.items():
            if anchor.held is None or (self._sharing is not None and not self._sharing.holds(anchor)):
                continue
            value = self._held(anchor)
            for step in (last,) if updated else range(last):
                for replica in range(loop.replicas):
                    stream.put(MicroBatch(iteration, step, replica), value)

    def _held(self, anchor: Anchor) -> torch.Tensor:
        """A copy of what the device has of something between two updates."""
        if anchor.held is Held.WEIGHT:
            return self.memory.copy_of(anchor.name)
        if anchor.held is Held.STATE:
            return self.updater.state_tensor(anchor.name).clone(memory_format=torch.contiguous_format)
        return self.updater.scalar(anchor.name).float()

    def schedule(self) -> tuple[list[Tick], list[JobRecord]]:
        """The ideal schedule of one accumulation round, and what ran in the latest one."""
        loop, training = self.executable.code.loop, self.executable.program.training
        micro = loop.gradient_accumulation if training else loop.device_iterations
        ideal = self.executable.plan.schedule(micro, training=training)
        return ideal, self.clock.latest_round(training=training, ipu=self.executable.plan.parts[0].ipu)


class _Rounds:
    """The updates of one call, one after each round of accumulation."""

    def __init__(self, engine: Engine, anchors: Mapping[Anchor, OutputStream]) -> None:
        self._engine = engine
        self._anchors = anchors
        self._first = engine.random.position
        self._done = 0

    def update(self, gradients: Gradients) -> None:
        """Update the weights with the gradients of a round."""
        engine = self._engine
        self._at(self._done + 1)
        engine.anchor_held(self._done, self._anchors, updated=False)
        code, random = engine.executable.code, engine.random.of_update()
        engine.updater.apply(code, gradients, random, engine.exchange, engine.trace)
        engine.share_weights()
        self.updated()

    def updated(self) -> None:
        """The weights were updated; a call that fails now has come so far."""
        self._engine.anchor_held(self._done, self._anchors, updated=True)
        self._done += 1
        self._at(self._done)

    def _at(self, rounds: int) -> None:
        """Random numbers go on after so many rounds of the call."""
        engine = self._engine
        engine.random.position = self._first + rounds * engine.executable.code.loop.gradient_accumulation
