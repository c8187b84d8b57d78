"""A session: one compiled program, loaded on a device or ready to be loaded."""

from __future__ import annotations

import contextlib
import datetime
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd import profiler

from poptorch._logging import backend, set_repeat_limit
from poptorch.capture.arguments import BoundCall, InputNormaliser, check_device
from poptorch.capture.front_end import FrontEnd
from poptorch.capture.structure import unflatten
from poptorch.compiler.lowering import STAGES, lower_for_device
from poptorch.compiler.observers import Dump, requested_dump
from poptorch.compiler.plan import Plan
from poptorch.compiler.request import CompileRequest, is_offline, uses_ipu_model
from poptorch.enums import ConnectionType
from poptorch.errors import createPoptorchError
from poptorch.executable.executable import Executable
from poptorch.executable.host_code import HostCode
from poptorch.executor import caching
from poptorch.executor.changes import changes
from poptorch.executor.failures import raise_explained
from poptorch.executor.frozen_attributes import FrozenAttributes
from poptorch.executor.host_weights import HostWeights
from poptorch.executor.job import Job, check_processes, replica_network
from poptorch.executor.level_change import LevelChange
from poptorch.executor.optimizer_link import OptimizerLink
from poptorch.executor.outputs import as_result
from poptorch.executor.profiled import ranges
from poptorch.executor.reporting import reporter_for
from poptorch.executor.stored import StoredExecutable
from poptorch.executor.target import Target, check_target
from poptorch.executor.written_inputs import WrittenInputs
from poptorch.host.build import build_host
from poptorch.host.store.code_store import CodeStore
from poptorch.optim.spec import OptimizerSpec
from poptorch.options import Options
from poptorch.options.backend import announce_precision, validate_options
from poptorch.options.progress import Progress
from poptorch.options.unfinished import mention_unfinished
from poptorch.profiling.trace import NO_TRACE, SpanKind, Trace
from poptorch.program.program import Program, Role
from poptorch.runtime.clock import JobRecord
from poptorch.runtime.engine import Engine
from poptorch.schedule import Tick

if TYPE_CHECKING:
    from poptorch.ipu_model.result import Estimate
    from poptorch.report.recording import Reporter


@dataclass(frozen=True)
class Wrapped:
    """A wrapped model with its options: what the executor gives to each of its sessions, and outlives them."""

    user_model: nn.Module
    captured: nn.Module
    """The model in the user's own class, around the same tensors."""

    shown: nn.Module
    """The model that the user may change: that, or another object with the same children."""

    copied: Mapping[str, Any] | None
    """The attributes that :attr:`captured` got from another object when it was wrapped."""

    options: Options
    weights: HostWeights
    link: OptimizerLink | None
    """The optimizer, for training."""

    normalise: InputNormaliser = field(default_factory=InputNormaliser)
    front_end: FrontEnd = field(default_factory=FrontEnd)

    def request(self, call: BoundCall) -> CompileRequest:
        """What to compile for a call."""
        if self.link is not None:
            self.link.check()
        return CompileRequest(
            self.captured,
            call,
            self.options,
            self.link is not None,
            self.link.spec if self.link is not None else None,
            normalise=self.normalise,
            groups=self.weights.groups,
            front_end=self.front_end,
        )


class RandomState:
    """Seed and position of the device's random numbers, and whether the host knows them."""

    def __init__(self, engine: Engine, seed: int | None) -> None:
        self._engine = engine
        self._known = None if seed is None else [seed]
        self._moved = False
        """Whether the device has drawn numbers since the host asked."""

    def moves(self) -> None:
        """The device begins to run."""
        self._moved = True

    def read(self) -> list[int] | None:
        """What the device has, or what the host wants it to have; ``None`` before anything fixed it."""
        if self._moved:
            backend.debug("Reading random seed")
            backend.debug("Reading RNG state")
            self._known = self._engine.random.state
            self._moved = False
        return None if self._known is None else list(self._known)

    def set(self, state: Sequence[int]) -> None:
        """What the device is to have with the next :meth:`send`."""
        self._known, self._moved = list(state), False

    def send(self) -> None:
        """Write what the host knows to the device."""
        if self._known is None:
            return
        backend.debug("Setting random seed to %d", self._known[0])
        if len(self._known) > 1:
            backend.debug("Setting RNG state")
        self._engine.random.state = self._known


def check_options(options: Options) -> None:
    """Refuse options that no program can be compiled with, and mention those that have no effect."""
    validate_options(options.toDict())
    announce_precision(options.Precision)
    set_repeat_limit(options.max_repeat_logs)
    mention_unfinished(options)
    check_target(options)
    check_processes(options)


class Session:
    """One compiled program: made by :meth:`compile`, ended by :meth:`release`."""

    def __init__(
        self,
        wrapped: Wrapped,
        target: Target,
        example: BoundCall,
        executable: Executable,
        store: CodeStore,
        dump: Dump | None = None,
        job: Job | None = None,
    ) -> None:
        self.wrapped = wrapped
        self.example = example
        """The arguments of the compilation."""

        self.compile_time = datetime.timedelta()
        self.is_traced = bool(wrapped.options.Jit._tracing_requested)
        """Whether the user asked for the tracing front end."""

        self._target = target
        self._interface = executable.device.interface
        self._written = WrittenInputs(self._interface)
        exchange, team = (None, None) if job is None else (job.exchange(executable), job.team)
        self.engine = engine = Engine(executable, exchange, team, replica_network(wrapped.options, executable))
        self._random = RandomState(engine, _seed(wrapped.options))
        self._level = LevelChange(engine, wrapped.weights, wrapped.options, store, dump, job is None)
        self._attributes = FrozenAttributes(wrapped.captured, wrapped.shown, wrapped.copied, wrapped.user_model)
        self._has_run = False
        self._estimate: Estimate | None = None
        self._request: CompileRequest | None = None
        self._reporter: Reporter | None = None

    @classmethod
    def compile(
        cls, wrapped: Wrapped, call: BoundCall, stored: StoredExecutable | None = None, trace: Trace = NO_TRACE
    ) -> Session:
        """Capture and compile the model for arguments like these, and load it as the options ask for.

        With ``stored``, the program must be the one in that file, and its native code is taken from there.
        """
        started = time.monotonic()
        options, target = wrapped.options, Target(wrapped.options)
        job = Job.of(options, training=wrapped.link is not None)
        try:
            with (
                wrapped.weights.unwatched(),
                caching.turn_to_compile(options, wrapped.user_model),
                Progress(options, STAGES + 2) as progress,
            ):
                session = cls(wrapped, target, call, *_compiled(wrapped, target, call, stored, progress, trace), job)
                session.engine.trace.listen(trace)
                with session.tried_with(call):
                    if uses_ipu_model(options):
                        session.take_verdict()
                    session.open_report()
                session.start(progress)
            if job is not None:  # after this process's turn: the others may be waiting for theirs
                job.agree(session)
        except BaseException as error:
            # Whatever went wrong, the IPUs are free for others and the executor is as if never compiled.
            target.detach()
            wrapped.weights.close()
            if job is not None:
                job.failed(error)
            raise
        session.compile_time = datetime.timedelta(seconds=time.monotonic() - started)
        return session

    # -- the device ----------------------------------------------------------------------------------------------

    @property
    def is_attached(self) -> bool:
        """Whether the program is loaded on a device."""
        return self._target.is_attached

    def start(self, progress: Progress) -> None:
        """The first time: the engine gets its code and memory, and what the host has for it."""
        wrapped, engine = self.wrapped, self.engine
        self._level.start(progress)
        if not is_offline(wrapped.options):  # a program that never runs here needs no code
            self.executable.code.prepare()
        progress.begin("loading")
        if wrapped.options.connection_type == ConnectionType.OnDemand:
            self._target.attach(self.executable.device.local_ipus)
        # Stages and replicas bind the weights to their arguments, which have to stay where they are.
        wrapped.weights.open(overlay=self.program.training and self.executable.code.alone)
        offline = is_offline(wrapped.options)
        if not offline:  # a program that never runs here needs no weights
            self._upload()
        if wrapped.link is not None:
            names, groups = wrapped.weights.names(), wrapped.weights.groups
            wrapped.link.compiled(self.optimizer, self.program, None if offline else engine, names, groups)
        self._load()

    def attach(self) -> None:
        """Reserve a device for the program and load everything on it."""
        if self.is_attached:
            raise createPoptorchError("Device is already attached. Call detachFromDevice() before attaching again.")
        self._target.attach(self.executable.device.local_ipus)
        self._upload()
        self._load()

    def _load(self) -> None:
        """The device is attached: random state and optimizer state follow the weights."""
        self._random.send()
        if self.wrapped.link is not None and not is_offline(self.wrapped.options):
            self.wrapped.link.attached(self.wrapped.weights.download_if_needed)

    def detach(self) -> None:
        """Bring everything to the host and release the device; the program is kept."""
        if not self.is_attached:
            raise createPoptorchError("Device is not attached. Call attachToDevice(), or run the model, before this.")
        self._random.read()
        self.wrapped.weights.download_if_needed()
        if self.wrapped.link is not None:
            self.wrapped.link.read_back()
        self._target.detach()

    def release(self) -> None:
        """Free the device; the session is not used again."""
        self._level.close()
        self._target.detach()
        self.wrapped.weights.close()
        if self._reporter is not None:
            self._reporter.finish()

    # -- what is on the device -----------------------------------------------------------------------------------

    def upload_weights(self) -> None:
        """Overwrite the device's parameters and buffers with the host's."""
        self._check_attached()
        weights, link = self.wrapped.weights, self.wrapped.link
        if link is not None:
            with weights.unwatched():
                link.read_back_alone()
        self._upload()

    def take_replacements(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Run with the tensors that the user has put into the model in place of others since the last call.

        ``optimizer`` is one that is about to be used instead of the current one.
        """
        weights, link, count = self.wrapped.weights, self.wrapped.link, changes.count
        replaced = weights.replaced()
        if link is not None:
            with weights.unwatched():
                link.check_not_replaced(link.optimizer if optimizer is None else optimizer, replaced)
                link.follow(replaced)
        weights.take(replaced, self.engine, count)

    def follow_weights(self) -> None:
        """Copy to the device what other training executors of the same tensors have brought to the host."""
        with self.engine.trace.span(SpanKind.WEIGHTS_TO_DEVICE):
            self.wrapped.weights.follow(self.engine)

    def _upload(self) -> None:
        with self.engine.trace.span(SpanKind.WEIGHTS_TO_DEVICE):
            self.wrapped.weights.upload(self.engine)

    def download_weights(self) -> None:
        """Overwrite the host's parameters and buffers with the device's."""
        self._check_attached()
        with self.engine.trace.span(SpanKind.WEIGHTS_TO_HOST):
            self.wrapped.weights.download(self.engine)

    def upload_buffers(self) -> None:
        """Refresh the buffers that the options declare updatable."""
        self.wrapped.weights.upload_buffers(self.engine)

    def _check_attached(self) -> None:
        if not self.is_attached:
            raise createPoptorchError(
                "Device is not attached: call attachToDevice() before copying weights between host and device"
            )

    def written_values_on_host(self) -> contextlib.AbstractContextManager[None]:
        """Inference programs may change buffers, and the host does not see it: in here, it does."""
        changed = {p.name for p in self.program.mutated() if p.role in (Role.BUFFER, Role.PARAMETER)}
        if self.program.training or not changed or not self.is_attached:
            return contextlib.nullcontext()
        return self.wrapped.weights.with_values_of(self.engine, changed)

    @property
    def rng_state(self) -> list[int] | None:
        """Seed and position of the device's random numbers."""
        return self._random.read()

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        self._random.set(state)
        if self.is_attached:
            self._random.send()

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, call: BoundCall) -> Any:
        """Run the program on these arguments; returns what ``forward`` does."""
        wrapped, layout = self.wrapped, self._interface.layout
        if self.is_traced:
            layout.check_traced_count(call)
        given = layout.tensors_of(call)
        self._attributes.check()
        for tensor in given:
            if not tensor.is_cpu:
                self._refuse_device(given)
        self._written.check(given)
        if wrapped.weights.seen != changes.count:
            self.take_replacements()
        if not wrapped.weights.is_complete:
            self._upload()
        if wrapped.link is not None:
            with wrapped.weights.unwatched():
                wrapped.link.upload(wrapped.weights.download_if_needed)
        inputs = self._normalised(given)
        after = self.engine.executable.code.native_after
        if after is not None:
            self._level.count(after)
        if wrapped.link is not None:
            wrapped.weights.overlay_if_unused(self.engine)
        self._device_changes()
        with wrapped.weights.unwatched():  # host operations of the model may look at it in the middle of a step
            try:
                results = self._measured(inputs)
            except Exception as error:  # noqa: BLE001  (raised again)
                raise_explained(error, self.engine, inputs)
        self._after_run(given, inputs)
        return self._rebuild(results)

    def _refuse_device(self, given: Sequence[torch.Tensor]) -> None:
        for tensor, spec in zip(given, self._interface.layout.specs, strict=True):
            check_device(tensor, spec.path)

    def _measured(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if profiler._is_profiler_enabled:
            with ranges(self.engine, self.program.training):
                return self._reported(inputs)
        return self._reported(inputs)

    def _reported(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._reporter is None:
            return self.engine.run(inputs)
        with self._reporter.run(self.engine):
            return self.engine.run(inputs)

    def inputs_of(self, call: BoundCall) -> list[torch.Tensor]:
        """The tensors of a call as the program takes them."""
        return self._normalised(self._interface.layout.tensors_of(call))

    def _normalised(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        normalise, specs = self.wrapped.normalise, self._interface.layout.specs
        return [normalise(tensor, spec.path) for tensor, spec in zip(given, specs, strict=True)]

    def _device_changes(self) -> None:
        """What the device holds is newer than what the host has from here on, however the call ends.

        A call that fails in its third device iteration has updated the weights twice, and one that is interrupted may
        have changed some of them. So this is said before, and not after, the call.
        """
        self._random.moves()
        if self.wrapped.link is not None:
            self.wrapped.weights.trains()
            self.wrapped.link.runs()

    def install(self, code: HostCode) -> None:
        """Run other code for the same program from the next call on."""
        self.engine.install(code)

    def _after_run(self, given: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        self._written.give_back(given, inputs)
        self._has_run = True
        if self.counts_cycles and backend.isEnabledFor(logging.DEBUG):
            backend.debug("Total number of IPU cycles: %d", self.estimate.cycles)

    def _rebuild(self, results: Sequence[torch.Tensor]) -> Any:
        interface = self._interface
        constants = interface.host_results
        tensors = [
            as_result(constants[i].clone() if position < 0 else results[position])
            for i, position in enumerate(interface.result_positions)
        ]
        return tensors[0] if interface.returns_one_tensor else unflatten(interface.output_structure, tensors)

    # -- looking inside ------------------------------------------------------------------------------------------

    @property
    def store(self) -> CodeStore:
        """Where native code comes from, and what there is of it."""
        return self._level.store

    @property
    def executable(self) -> Executable:
        """The compiled model: what IPUs run, and the code by which this host runs it."""
        return self.engine.executable

    @property
    def program(self) -> Program:
        """The compiled program of one micro-batch."""
        return self.executable.program

    @property
    def plan(self) -> Plan:
        """How IPUs share the program."""
        return self.executable.plan

    @property
    def optimizer(self) -> OptimizerSpec | None:
        """Description of the optimizer, restricted to parameters that a gradient reaches and this process updates."""
        spec: OptimizerSpec | None = self.executable.device.local_optimizer
        return spec

    @property
    def updated_parameters(self) -> list[str]:
        """The names of the parameters that the optimizer updates."""
        update = self.executable.update
        return [] if update is None else update.names

    @property
    def has_run(self) -> bool:
        """Whether there was a call."""
        return self._has_run

    @contextlib.contextmanager
    def tried_with(self, call: BoundCall) -> Iterator[None]:
        """Meanwhile, estimates can try changes of the model on this call; afterwards its arguments are free."""
        self._request = self.wrapped.request(call)
        try:
            yield
        finally:
            self._request = None
            if self._estimate is not None and self._estimate.bench is not None:
                self._estimate.bench.close()

    def take_verdict(self) -> None:
        """Let the IPU Model say whether the program fits."""
        from poptorch.executor import modelling  # the IPU Model is loaded when it is needed

        self._estimate = modelling.give_verdict(self.executable.device, self.wrapped.options, self._request)

    def open_report(self) -> None:
        """Write a report, if the engine options ask for one."""
        self._reporter = reporter_for(lambda: self.estimate, self.wrapped.options, self.wrapped.link is not None)

    @property
    def estimate(self) -> Estimate:
        """What the IPU Model says of the program; worked out when it is asked for the first time."""
        if self._estimate is None:
            from poptorch.executor import modelling

            self._estimate = modelling.estimate_for(self.executable.device, self.wrapped.options, self._request)
        return self._estimate

    @property
    def counts_cycles(self) -> bool:
        """Whether the options ask for cycle counts."""
        return bool(self.wrapped.options._Popart.options.get("instrumentWithHardwareCycleCounter"))

    @property
    def anchored(self) -> dict[str, torch.Tensor]:
        """The anchored values of the latest call."""
        return self.engine.anchored

    @property
    def counters(self) -> dict[str, list[list[float]]]:
        """The time stamps of the latest call."""
        return self.engine.clock.counters()

    def schedule(self) -> tuple[list[Tick], list[JobRecord]]:
        """The ideal schedule of one accumulation round, and what ran in the latest one."""
        return self.engine.schedule()


def _seed(options: Options) -> int | None:
    return int(options.random_seed) if options.exists("random_seed") else None


def _compiled(
    wrapped: Wrapped,
    target: Target,
    call: BoundCall,
    stored: StoredExecutable | None,
    progress: Progress,
    trace: Trace,
) -> tuple[Executable, CodeStore, Dump | None]:
    options = wrapped.options
    request = wrapped.request(call)
    dump = requested_dump(request.training)
    device = None if stored is None else stored.device_program(request)
    is_captured = device is None
    if device is None:
        device = lower_for_device(request, progress.begin, trace, dump)
    if options.connection_type == ConnectionType.Always:
        target.attach(device.local_ipus)
    progress.begin("code")
    dump = None if dump is None else dump.of_host()
    with trace.span(SpanKind.COMPILE, label="host code"):
        executable = Executable(device, build_host(device, dump))
    backend.debug("Finished Poplar compilation")
    wrapped.weights.check_updatable_buffers()
    if stored is not None and is_captured:
        stored.check(device)
    directory = None if uses_ipu_model(options) else caching.cache_directory(options)
    return executable, caching.code_store(executable, directory, None if stored is None else stored.file), dump
