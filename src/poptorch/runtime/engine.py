"""The engine: an executable with its device memory, running whole calls without any of the user's Python."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from poptorch import schedule
from poptorch.executable.executable import Executable
from poptorch.executable.host_code import HostCode
from poptorch.program.loop import Loop, MicroBatch
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Role
from poptorch.program.update import State, flat_arguments
from poptorch.runtime.accumulate import GradientAccumulator
from poptorch.runtime.counters import PerfCounters
from poptorch.runtime.heap import keep_freed_memory
from poptorch.runtime.loss_scale import LossScaler, Tally
from poptorch.runtime.owners import update_shards
from poptorch.runtime.parallel import Call, Memory, ParallelRunner
from poptorch.runtime.stamps import SequentialStamps, Stamps
from poptorch.runtime.streams import OutputStream
from poptorch.runtime.values.random_source import GroupedRandom, RandomSource, mix
from poptorch.runtime.values.weights import Weights
from poptorch.runtime.workers import Span

_UPDATES = -1
"""Stands for the replica in the random numbers of weight updates, which are the same on all replicas."""


class Engine:
    """Device memory and the loop over it."""

    def __init__(self, executable: Executable) -> None:
        keep_freed_memory()
        self.executable = executable
        program = executable.program
        self._loop: Loop = executable.code.loop
        self._parameter_names = [p.name for p in program.ports_of(Role.PARAMETER)]
        self._buffer_names = [p.name for p in program.ports_of(Role.BUFFER)]
        self._types = {p.name: p.dtype for p in program.ports if p.role in (Role.PARAMETER, Role.BUFFER)}
        self._constants = [program.constants[p.name] for p in program.ports_of(Role.CONSTANT)]
        self._parameters = Weights()
        self._by_name: dict[str, torch.Tensor] = {}
        self._buffers: list[list[torch.Tensor]] = []
        self._run_micro_batch = executable.code.micro_batch.run
        self._num_device_results = len(program.results)
        self._gradients = program.positions_of(OutputKind.GRADIENT)
        self._anchored = program.positions_of(OutputKind.ANCHOR)
        self._counts = program.positions_of(OutputKind.COUNT)
        self._accumulator = GradientAccumulator(executable)
        self._scaled = bool(program.ports_of(Role.LOSS_SCALE))
        self._optimizer_state: list[State] = []
        self.hyper: Sequence[Mapping[str, torch.Tensor]] = []
        self.loss_scale = torch.ones(())
        self.scaler: LossScaler | None = None
        """Automatic loss scaling, if it is on."""

        self._tally = Tally()
        self._scale = [self.loss_scale]  # what back-propagation starts from
        self.counters = PerfCounters(num_inputs=len(program.ports_of(Role.INPUT)), num_outputs=self._num_device_results)
        self._anchors = executable.device.settings.anchors
        self.anchored: dict[str, torch.Tensor] = {}
        self.seed: int | None = None
        self._position = 0
        self.parallel = None if executable.code.alone else ParallelRunner(executable)
        """Runs the stages of a model on several IPUs, or several replicas, at the same time."""

        self._simple = self._is_simple()

    def _is_simple(self) -> bool:
        """One inference micro-batch a call: the loop has nothing to do."""
        loop = self._loop
        once = loop.device_iterations == loop.gradient_accumulation == loop.replicas == 1
        settings = self.executable.device.settings
        plain = not settings.training and not settings.anchors and not settings.synthetic_data
        return once and plain and self.parallel is None

    def install(self, code: HostCode) -> None:
        """Run other code for the same program from the next call on."""
        self.executable = dataclasses.replace(self.executable, code=code)
        self._run_micro_batch = code.micro_batch.run
        if self.parallel is not None:
            self.parallel.install(code)
        if code.formats:
            self._arrange()

    def _arrange(self) -> None:
        """Let weights and optimizer state lie in memory as native code wants them."""
        code, update = self.executable.code, self.executable.update
        owned = list(self._by_name.items())
        if self._optimizer_state and update is not None:
            owned += zip(update.owners, flat_arguments((), (), self._optimizer_state, ()), strict=True)
        for name, tensor in owned:
            arranged = code.format_of(name, tensor)
            if arranged is not tensor:
                tensor.set_(arranged.untyped_storage(), 0, arranged.shape, arranged.stride())
        self._weights_changed()

    # -- weights -------------------------------------------------------------------------------------------------

    def upload(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy host parameters and buffers to the device; every replica starts from the same values."""
        if not self._parameters and not self._buffers:
            self._allocate(tensors)
            return
        for name, target in zip(self._parameter_names, self._parameters, strict=True):
            target.copy_(tensors[name])
        self.upload_buffers(tensors, self._buffer_names)

    def upload_buffers(self, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> None:
        """Copy some host buffers to the device."""
        for buffers in self._replica_buffers():
            for name, target in zip(self._buffer_names, buffers, strict=True):
                if name in names:
                    target.copy_(tensors[name])
        self._weights_changed()  # what was computed ahead from either is outdated

    def _allocate(self, tensors: Mapping[str, torch.Tensor]) -> None:
        def device_copy(name: str) -> torch.Tensor:
            return tensors[name].detach().to(self._types[name], copy=True, memory_format=torch.contiguous_format)

        self._parameters = Weights(device_copy(name) for name in self._parameter_names)
        self._by_name = dict(zip(self._parameter_names, self._parameters, strict=True))
        self._arrange()
        copies = self._loop.replicas if self.executable.device.settings.private_buffers else 1
        private = [[device_copy(name) for name in self._buffer_names] for _ in range(copies)]
        self._buffers = private if copies > 1 else private * self._loop.replicas
        if self.parallel is not None:
            self.parallel.bind(Memory(self._replica_parameter, self._buffer))

    def _replica_parameter(self, replica: int, name: str) -> torch.Tensor:
        grouping = self.executable.device.settings.groups.get(name)
        whole = self._by_name[name]
        return whole if grouping is None else whole[grouping.group_of(replica)]

    def _buffer(self, replica: int, name: str) -> torch.Tensor:
        return self._buffers[replica][self._buffer_names.index(name)]

    def _weights_changed(self) -> None:
        self._parameters.changed()
        if self.parallel is not None:
            self.parallel.weights_changed()

    def _replica_buffers(self) -> list[list[torch.Tensor]]:
        return list({id(b): b for b in self._buffers}.values())

    def download(self) -> dict[str, torch.Tensor]:
        """Device parameters and buffers by name (not copied; those of the first replica)."""
        buffers = self._buffers[0] if self._buffers else []
        return {
            **dict(zip(self._parameter_names, self._parameters, strict=True)),
            **dict(zip(self._buffer_names, buffers, strict=True)),
        }

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """Device parameters by name (not copied)."""
        return self._by_name

    def parameter(self, name: str) -> torch.Tensor:
        """One device parameter."""
        return self._by_name[name]

    def _copy_of(self, name: str) -> torch.Tensor:
        return self.parameter(name).clone(memory_format=torch.contiguous_format)

    @property
    def optimizer_state(self) -> list[State]:
        """The state of each parameter group."""
        return self._optimizer_state

    @optimizer_state.setter
    def optimizer_state(self, states: list[State]) -> None:
        self._optimizer_state = states
        self._arrange()

    # -- random numbers ------------------------------------------------------------------------------------------

    @property
    def rng_state(self) -> list[int] | None:
        """Seed and position of the random streams; ``None`` before anything fixed them."""
        if self.seed is None:
            return None
        return [self.seed, self._position] if self._position else [self.seed]

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        self.seed = int(state[0])
        self._position = int(state[1]) if len(state) > 1 else 0

    def _random(self, position: int, replica: int) -> RandomSource:
        """The random numbers of the group whose first micro-batch is at ``position``."""
        seed, size = self.seed, self._loop.group_size
        assert seed is not None
        if size == 1:
            return RandomSource(seed, position, replica)
        return GroupedRandom([mix(seed, position + i, replica) for i in range(size)])

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """One call: all device iterations, accumulation steps, replicas and weight updates. Returns the results."""
        if self.seed is None:
            self.seed = secrets.randbits(62)
        if self._simple:
            return self._run_once(inputs)
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            self._set_scale()
            self._tally.take()
            self._accumulator.reset()  # a call that failed may have left something
            if self.parallel is not None:
                return self._run_parallel(self.parallel, self._synthetic(inputs))
            return self._run_loop(self._synthetic(inputs))

    def _run_once(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        counters, now = self.counters, time.perf_counter
        started = now()
        assert self.seed is not None
        random = RandomSource(self.seed, self._position, 0)
        grad_enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # as torch.no_grad, without its Python frames
        try:
            with torch._C._AutoDispatchBelowAutograd():
                outputs = self._run_micro_batch(self._parameters, self._buffers[0], self._constants, inputs, (), random)
        finally:
            torch._C._set_grad_enabled(grad_enabled)
        self._position += 1
        ended = now()
        counters.input = counters.input_complete = [started]
        counters.output = counters.output_complete = [ended]
        return list(outputs)

    def _run_loop(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        executable, loop = self.executable, self._loop
        results = [OutputStream(loop) for _ in range(self._num_device_results)]
        anchors = [OutputStream(loop, a.mode, a.period) for a in self._anchors]
        stamps = SequentialStamps(loop, executable.device.settings.synthetic_data != 0)
        gradients, inner, counts = self._gradients, self._anchored, self._counts
        scale = self._scale if self._scaled else ()
        step = self._whole_step()
        blocks = self._blocks(inputs)
        for tick in loop.group_starts():
            members = loop.members(tick)
            stamps.input()
            block = blocks[loop.input_block(tick)]
            stamps.input_complete()
            random = self._random(self._position, tick.replica)
            run = self._run_micro_batch if step is None else step
            outputs = run(
                self._parameters, self._buffers[tick.replica], self._constants, block, scale, random
            )
            stamps.output(members)
            for stream, value in zip(results, outputs, strict=False):
                stream.put_all(members, value)
            stamps.output_complete(members)
            if step is not None:
                self._position += 1
                self._anchor(tick, anchors, outputs[inner.start - len(gradients) :])  # there are no gradients
                continue
            if gradients:
                self._accumulator.add(outputs[gradients.start : gradients.stop])
            for count in outputs[counts.start : counts.stop]:
                self._tally.put(tick, count)
            if tick.replica == loop.replicas - 1:
                self._position += loop.group_size
                if members[-1].step == loop.gradient_accumulation - 1 and executable.update is not None:
                    self._update(self._accumulator.take())
            self._anchor(tick, anchors, outputs[inner.start : inner.stop])
            del outputs  # gradients are not kept while the next micro-batch runs
        stamps.store(self.counters)
        self.anchored = {a.short_name: s.take() for a, s in zip(self._anchors, anchors, strict=True)}
        return self._returned(results)

    def _whole_step(self) -> Callable[..., Sequence[torch.Tensor]] | None:
        """Micro-batch and update in one function, if there is one and nothing has to happen between them."""
        code = self.executable.code.step
        if code is None or self.scaler is not None:
            return None
        state = flat_arguments((), (), self.optimizer_state, self.hyper)
        run = code.run
        return lambda *arguments: run(*arguments, state)

    def _run_parallel(self, runner: ParallelRunner, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        executable, loop = self.executable, self._loop
        results = [OutputStream(loop) for _ in range(self._num_device_results)]
        anchors = [OutputStream(loop, a.mode, a.period) for a in self._anchors]
        blocks = self._blocks(inputs)
        first = self._position
        updates = 0

        def random(tick: MicroBatch) -> RandomSource:
            return self._random(first + tick.iteration * loop.gradient_accumulation + tick.step, tick.replica)

        def update(gradients: Mapping[str, torch.Tensor]) -> None:
            nonlocal updates
            self._position = first + (updates + 1) * loop.gradient_accumulation
            self._anchor_parameters(updates, anchors, before=True)
            self._update(gradients)
            self._anchor_parameters(updates, anchors, before=False)
            updates += 1

        stamps = Stamps(loop, executable.device.settings.synthetic_data != 0)
        runner.run(
            Call(
                micro_batch=lambda tick: blocks[loop.input_block(tick)],
                random=random,
                loss_scale=self._scale,
                results=results,
                anchors=[s for s, a in zip(anchors, self._anchors, strict=True) if a.parameter is None],
                counts=self._tally,
                stamps=stamps,
                update=update if executable.update is not None else None,
            )
        )
        if executable.update is None:
            for iteration in range(loop.device_iterations):
                self._anchor_parameters(iteration, anchors, before=True)
                self._anchor_parameters(iteration, anchors, before=False)
        self._position = first + loop.device_iterations * loop.gradient_accumulation
        stamps.store(self.counters)
        self.anchored = {a.short_name: s.take() for a, s in zip(self._anchors, anchors, strict=True)}
        return self._returned(results)

    def schedule(self) -> tuple[list[schedule.Tick], list[Span]]:
        """The ideal schedule of one accumulation round, and what ran in the latest one."""
        loop, training = self._loop, self.executable.program.training
        micro = loop.gradient_accumulation if training else loop.device_iterations
        ideal = self.executable.plan.schedule(micro, training=training)
        rounds = [] if self.parallel is None else self.parallel.rounds
        return ideal, rounds[-1] if rounds else []

    def _anchor_parameters(self, iteration: int, streams: Sequence[OutputStream], before: bool) -> None:
        """Anchored weights: the micro-batches of the last accumulation step see them updated, the others do not."""
        last = self._loop.gradient_accumulation - 1
        for anchor, stream in zip(self._anchors, streams, strict=True):
            if anchor.parameter is None:
                continue
            for step in range(last) if before else (last,):
                for replica in range(self._loop.replicas):
                    stream.put(MicroBatch(iteration, step, replica), self._copy_of(anchor.parameter))

    def _anchor(self, tick: MicroBatch, streams: Sequence[OutputStream], values: Sequence[torch.Tensor]) -> None:
        inner = iter(values)
        for anchor, stream in zip(self._anchors, streams, strict=True):
            if anchor.parameter is None:
                stream.put(tick, next(inner))
            else:
                stream.put(tick, self._copy_of(anchor.parameter))

    def _blocks(self, inputs: Sequence[torch.Tensor]) -> Sequence[Sequence[torch.Tensor]]:
        """The inputs of every group of micro-batches."""
        loop = self._loop
        factor, size = loop.input_factor, loop.group_size
        if factor == 1 or not inputs:
            return [inputs] * factor
        if size == 1:
            return list(zip(*(tensor.chunk(factor) for tensor in inputs), strict=True))
        groups = loop.input_groups
        rounds = (t.unflatten(0, (-1, size, groups, t.shape[0] // factor)).transpose(1, 2) for t in inputs)
        return list(zip(*([b.contiguous() for b in t.flatten(0, 1).unbind()] for t in rounds), strict=True))

    def _update(self, gradients: Mapping[str, torch.Tensor]) -> None:
        update = self.executable.update
        assert update is not None
        params = [[self._by_name[name] for name in group] for group in update.parameters]
        grads = [[gradients[name] for name in group] for group in update.parameters]
        random = RandomSource(self.seed or 0, self._position, _UPDATES)
        code, hyper = self.executable.code, self._hyper_now()
        if code.shards:
            update_shards(update, code.shards, self._by_name, gradients, self.optimizer_state, hyper)
        else:
            assert code.update is not None
            code.update.run(random, *flat_arguments(params, grads, self.optimizer_state, hyper))
        self._weights_changed()
        self._rescale()

    def _hyper_now(self) -> Sequence[Mapping[str, torch.Tensor]]:
        if self.scaler is None:
            return self.hyper
        factor = self.scaler.factor.double()
        return [{**group, "loss_scale_factor": factor} for group in self.hyper]

    def _rescale(self) -> None:
        """After an update: the loss scale of the next one."""
        if self.scaler is None:
            return
        large = self._tally.take()
        if self.scaler.observes:
            elements = self.executable.device.watch.elements * self._loop.micro_batches_per_update
            self.scaler.add_counts(torch.tensor(large), torch.tensor(elements - large))
        self.scaler.step()
        self._set_scale()

    def _set_scale(self) -> None:
        self._scale[0] = self.loss_scale if self.scaler is None else self.loss_scale * self.scaler.factor.float()

    def _synthetic(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """With synthetic data the host's inputs are not read: the device makes up its own."""
        mode = self.executable.device.settings.synthetic_data
        if not mode:
            return inputs
        generator = torch.Generator().manual_seed(mix(self.seed or 0, mode))
        fill = {1: _zeros, 2: _normal, 3: _uniform}[mode]
        return [fill(t, generator) if t.is_floating_point() else torch.zeros_like(t) for t in inputs]

    def _returned(self, streams: Sequence[OutputStream]) -> list[torch.Tensor]:
        values = [stream.take() for stream in streams]
        if self.executable.device.settings.synthetic_data:
            return [torch.zeros_like(v) for v in values]  # nothing was sent to the host
        return values


def _zeros(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros_like(tensor)


def _normal(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.empty_like(tensor).normal_(generator=generator)


def _uniform(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.empty_like(tensor).uniform_(generator=generator)
