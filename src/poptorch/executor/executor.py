"""``trainingModel``, ``inferenceModel`` and the executor they return: a facade over capture, compiler and runtime."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from poptorch import ambient, environment
from poptorch._logging import backend, logger, set_repeat_limit
from poptorch._version import __version__
from poptorch.capture.arguments import BoundCall, InputNormaliser, Signature, check_tracing_rules
from poptorch.capture.structure import unflatten
from poptorch.compiler.lowering import STAGES, lower_for_device
from poptorch.compiler.plan import Plan
from poptorch.compiler.request import CompileRequest
from poptorch.devices import attachment as device
from poptorch.enums import CommGroupType, ConnectionType, MeanReductionStrategy, OutputMode, VariableRetrievalMode
from poptorch.errors import Error, createPoptorchError
from poptorch.executable.executable import Executable
from poptorch.executable.host_code import HostCode
from poptorch.executor import instrumentation
from poptorch.executor import saving as exporting
from poptorch.executor.build import Build
from poptorch.executor.host_weights import WeightTransfer
from poptorch.executor.inspection import Inspection
from poptorch.executor.optimizer_link import OptimizerLink
from poptorch.executor.outputs import DeviceTensor, ParameterView
from poptorch.executor.saving import Precompilation, StoredExecutable
from poptorch.host.build import build_host
from poptorch.host.native.build import native_code
from poptorch.optim import SGD
from poptorch.options import Options
from poptorch.options.backend import announce_precision, validate_options
from poptorch.options.progress import Progress
from poptorch.options.unfinished import mention_unfinished, refuse_distributed_training
from poptorch.placement import counting
from poptorch.printing import module_repr
from poptorch.profiling import Channel
from poptorch.program.program import Program
from poptorch.program.replica_groups import ReplicaGrouping
from poptorch.runtime import gantt
from poptorch.runtime.engine import Engine


class PoplarExecutor(WeightTransfer, Inspection, Precompilation):
    """A model wrapped for training or inference. Made by the two wrapping functions, not by users.

    Calling it runs the compiled program; whatever else is asked of it and it does not have is asked of the model.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options | None,
        training: bool,
        poptorch_version: str | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        user_model: nn.Module | None = None,
    ) -> None:
        if poptorch_version not in (None, __version__):
            raise createPoptorchError(f"This is version {__version__} of poptorch, not {poptorch_version}")
        model = model if user_model is None else user_model
        options = Options() if options is None else options
        if not isinstance(options, Options):
            raise createPoptorchError(f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)")
        if not isinstance(model, nn.Module):
            raise TypeError(f"Expected a torch.nn.Module, got {type(model)}")
        assert training or optimizer is None, "Optimizer should be None for inference"
        self._training = training
        self._options = _resolved_copy(options, training)
        self._user_model = model
        self._link: OptimizerLink | None = None
        self._build: Build | None = None
        self._example: BoundCall | None = None
        self._engine: Engine | None = None
        self._device: device.Device | None = None
        self._groups: dict[str, ReplicaGrouping] = {}
        self._host_weights_stale = False
        self._host_version = 0
        self._identity = object()
        self._uploaded_version: tuple[object, int] | None = None
        """Which training executor's weights were uploaded last, and which version of them."""
        self._watched = True
        self._ran = False
        self._ever_ran = False
        self._random_state: list[int] | None = None
        self._compile_time: datetime.timedelta | None = None
        self._calls = 0
        self._normalise = InputNormaliser()
        self._traced = bool(self._options.Jit._tracing_requested)
        self._offline = self._is_offline()
        self._options.Precision.autocast_policy.apply(model, self._options)
        if training:
            self._prepare_training(model, optimizer)
        else:
            counting.check_inference_accumulation(
                self._options._execution_strategy, self._options.Training.gradient_accumulation
            )
        self._captured = instrumentation.plain_shallow_copy(model)
        self._signature = Signature(self._captured.forward)
        self._model = model if training else instrumentation.shallow_copy(model)
        if training:
            instrumentation.instrument(model, self)
        options._freeze()
        self._options._freeze()
        kind = "trainingModel" if training else "inferenceModel"
        Channel(f"poptorch.{kind}").instrument(self, "copyWeightsToDevice", "setOptimizer", "compile")

    def _prepare_training(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        if instrumentation.is_instrumented(model):
            raise RuntimeError(
                "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to "
                "unwrap before wrapping again."
            )
        instrumentation.check_buffers(model)
        if optimizer is None:
            optimizer = SGD(model.parameters(), lr=0.01)
        self._link = OptimizerLink(optimizer, self._options)
        self._link.connect()
        self._options.Training.set(
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy(self._link.spec.strategy)
        )

    # -- identity ------------------------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The user's model (training), or the shallow copy of it that this executor runs (inference)."""
        return self._model

    @property
    def options(self) -> Options:
        """The executor's own, frozen copy of the options."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and "_model" not in self.__dict__:
            raise AttributeError(name)
        value = getattr(self._model, name)
        if not self._training and isinstance(value, nn.Parameter):
            return ParameterView.of(value, functools.partial(self.group_replicas, value))
        return value

    def group_replicas(self, parameter: nn.Parameter, kind: Any, size: int, retrieval: Any) -> None:
        """What ``executor.<parameter>.replicaGrouping(...)`` does; to be called before compilation."""
        kind, retrieval = CommGroupType(kind), VariableRetrievalMode(retrieval)
        names = self._parameter_names()
        name = names[id(parameter)]
        if self._build is not None:
            raise createPoptorchError(
                f"Replica grouping of {name!r} after compilation: the program exists already. Call it before compile() "
                "and before the first run, or destroy() the model first."
            )
        if parameter.dim() == 0:
            raise createPoptorchError(
                f"Scalars cannot be passed to replicaGrouping: {name!r} needs a first dimension that counts the groups."
            )
        if kind is CommGroupType.All:
            self._groups.pop(name, None)
            return
        grouping = ReplicaGrouping(kind, size, self._options.replication_factor, retrieval)
        grouping.check(name, tuple(parameter.shape))
        self._groups[name] = grouping

    def __repr__(self) -> str:
        return module_repr(self._model)

    @property
    def weights_are_watched(self) -> bool:
        """Whether a look at the weights is the user's (and needs fresh values) or our own."""
        return self._watched

    @contextlib.contextmanager
    def _unwatched(self) -> Iterator[None]:
        previous, self._watched = self._watched, False
        try:
            yield
        finally:
            self._watched = previous

    # -- life cycle ----------------------------------------------------------------------------------------------

    def isCompiled(self) -> bool:
        """Whether there is a compiled program."""
        return self._build is not None

    def isAttachedToDevice(self) -> bool:
        """Whether the program is loaded on a device."""
        return self._build is not None and self._device is not None

    def _compiled(self) -> tuple[Build, Engine]:
        if self._build is None or self._engine is None:
            raise createPoptorchError("Model has not been compiled or has been destroyed.")
        return self._build, self._engine

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Capture and compile the model for arguments like these, and load it on the device.

        >>> import poptorch
        >>> model = poptorch.inferenceModel(torch.nn.Linear(2, 1))
        >>> model.compile(torch.zeros(1, 2))
        >>> model.isCompiled()
        True
        """
        if self._build is not None:
            logger.warning("Call to compile() ignored: model already compiled")
            return
        call = self._bind(args, kwargs)
        with torch.inference_mode(False):
            self._compile(call)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> BoundCall:
        if ambient.current() is not None:
            raise createPoptorchError(
                "A wrapped model was called inside the forward() of another one while that is compiled. Call the "
                "plain module there (the wrapped one's .model): it becomes part of the outer program."
            )
        call = self._signature.bind(args, kwargs)
        if self._traced:
            check_tracing_rules(call, self._signature)
        return call

    def _compile(self, call: BoundCall, stored: StoredExecutable | None = None) -> None:
        started = time.monotonic()
        validate_options(self._options.toDict())
        announce_precision(self._options.Precision)
        set_repeat_limit(self._options.max_repeat_logs)
        mention_unfinished(self._options)
        if self._training:
            refuse_distributed_training(self._options)
        self._check_target()
        self._take_model()
        try:
            with self._unwatched(), self._turn_to_compile(), Progress(self._options, STAGES + 1) as progress:
                self._compile_and_load(call, progress, stored)
        except BaseException:
            # Whatever went wrong, the IPUs are free for others and the executor is as if never compiled.
            self._release()
            raise
        self._compile_time = datetime.timedelta(seconds=time.monotonic() - started)

    def _take_model(self) -> None:
        """A training executor that was destroyed and is used again watches its model again."""
        if self._link is not None and instrumentation.owner_of(self._user_model) is not self:
            instrumentation.instrument(self._user_model, self)
            self._link.connect()

    def _compile_and_load(self, call: BoundCall, progress: Progress, stored: StoredExecutable | None) -> None:
        self.copyWeightsToHostIfNeeded()
        if self._link is not None:
            self._link.check()
        request = CompileRequest(
            self._captured,
            call,
            self._options,
            self._training,
            self._link.spec if self._link is not None else None,
            normalise=self._normalise,
            groups=self._groups,
        )
        device_program = lower_for_device(request, progress.begin)
        if self._options.connection_type == ConnectionType.Always:
            self._attach(device_program.ipus_per_replica)
        progress.begin("code")
        executable = Executable(device_program, build_host(device_program))
        backend.debug("Finished Poplar compilation")
        build = Build(executable, self._code_store(executable, stored, cached=not self._uses_ipu_model()))
        self._check_updatable_buffers(build)
        if stored is not None:
            stored.check(build)
        engine = Engine(build.executable)
        if build.executable.code.native_after == 0:
            self._use_native_code(build, engine, progress)
        progress.begin("loading")
        if self._options.connection_type == ConnectionType.OnDemand:
            self._attach(build.executable.device.ipus_per_replica)
        self._upload(engine)
        self._build, self._engine, self._example = build, engine, call
        if self._link is not None:
            self._link.compiled(build, engine, self._parameter_names(), self._is_offline())
        self._load()

    def _load(self) -> None:
        """The device is attached: random state and optimizer state follow the weights."""
        _, engine = self._compiled()
        if self._random_state is None and self._options.exists("random_seed"):
            self._random_state = [self._options.random_seed]
        if self._random_state is not None:
            self._send_random_state(engine)
        if self._link is not None and not self._is_offline():
            self._link.attached(self._save_weights)

    def _check_target(self) -> None:
        options = self._options
        uses_model = self._uses_ipu_model()
        if self._is_offline() and uses_model:
            raise createPoptorchError("ConnectionType.Never is not supported for the IPU model")
        if self._is_offline() and options.exists("ipu_id"):
            raise createPoptorchError("Offline compilation targeting a specific id not supported")
        counts_cycles = bool(options._Popart.options.get("instrumentWithHardwareCycleCounter"))
        if counts_cycles and (uses_model or self._is_offline()):
            raise createPoptorchError("Cycle count logging is only supported on actual IPU hardware.")
        if uses_model and options._Popart.options.get("enableEngineCaching"):
            logger.warning("enableExecutableCaching doesn't work with the IPU model")

    def _uses_ipu_model(self) -> bool:
        if self._options.exists("use_model"):
            return bool(self._options.use_model)
        return environment.ipu_model_request().enabled

    def _is_offline(self) -> bool:
        return self._options.connection_type == ConnectionType.Never

    def _attach(self, ipus_per_replica: int) -> None:
        """Reserve the IPUs of the program."""
        simulated = self._uses_ipu_model()
        needed = counting.reserve_ipus(
            ipus_per_replica,
            self._options.replication_factor,
            auto_round=self._options.auto_round_num_ipus,
            hardware=not simulated,
        )
        if simulated or needed == 0:
            self._device = device.simulated(needed)
            return
        if not self._options.exists("ipu_id"):
            self._device = device.acquire(needed, self)
            return
        chosen = self._options.ipu_id
        counting.check_selected_device(device.size_of(chosen), needed, chosen)
        self._device = device.acquire_id(chosen, self)

    def attachToDevice(self) -> None:
        """Reserve a device for the compiled program and load everything on it."""
        assert not self._is_offline(), "Trying to attach to an offline device"
        build, engine = self._compiled()
        if self._device is not None:
            raise createPoptorchError("Device is already attached")
        self._attach(build.executable.device.ipus_per_replica)
        with self._unwatched():
            self._upload(engine)
        self._load()

    def detachFromDevice(self) -> None:
        """Bring everything to the host and release the device; the compiled program is kept."""
        _, engine = self._compiled()
        if self._device is None:
            raise createPoptorchError("Device is not attached")
        self._read_random_state(engine)
        if self._training:
            self.copyWeightsToHostIfNeeded()
        if self._link is not None:
            self._link.read_back()
        self._device.release()
        self._device = None

    def destroy(self) -> None:
        """Release program and device; for training, leave the trained weights in the user's model and unwrap it."""
        was_compiled = self._build is not None
        if was_compiled:
            if self._training:
                self.copyWeightsToHostIfNeeded()
            if self._link is not None:
                self._link.disconnect()
            self._release()
        if not self._training:
            return
        if instrumentation.owner_of(self._user_model) is self:
            instrumentation.restore(self._user_model)
        elif was_compiled:
            raise createPoptorchError(
                "Cannot unwrap the model: model was never wrapped by this executor, or its class was changed since. "
                "Program and device are released."
            )

    def _release(self) -> None:
        """Forget the program and free its device."""
        if self._device is not None:
            self._device.release()
        self._build = self._engine = self._device = self._example = None
        self._ran = self._ever_ran = False
        self._random_state = None

    def __del__(self) -> None:
        # A training executor may be dropped without destroy(): what it learned must not be lost.
        if sys.is_finalizing() or not self.__dict__.get("_host_weights_stale"):
            return
        with contextlib.suppress(Error, RuntimeError):
            self.copyWeightsToHost()

    # -- optimizer and random numbers ----------------------------------------------------------------------------

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Replace the optimizer, or re-read the attributes of the current one."""
        if self._link is None:
            raise createPoptorchError("setOptimizer() needs a training model: this one is for inference")
        with self._unwatched():
            self._link.replace(optimizer, self._save_weights)

    @property
    def rng_state(self) -> list[int] | None:
        """Seed and position of the device's random numbers."""
        _, engine = self._compiled()
        if self._ran:
            self._read_random_state(engine)
        return None if self._random_state is None else list(self._random_state)

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        _, engine = self._compiled()
        words = list(state)
        if not words or not all(isinstance(word, int) for word in words):
            raise createPoptorchError(
                f"rng_state must be a list of integers that starts with the seed, as reading it returns, not {words!r}"
            )
        self._random_state = words
        self._ran = False
        if self.isAttachedToDevice():
            self._send_random_state(engine)

    def _read_random_state(self, engine: Engine) -> None:
        if self._ran:
            backend.debug("Reading random seed")
            backend.debug("Reading RNG state")
            self._random_state = engine.rng_state
            self._ran = False

    def _send_random_state(self, engine: Engine) -> None:
        assert self._random_state is not None
        backend.debug("Setting random seed to %d", self._random_state[0])
        if len(self._random_state) > 1:
            backend.debug("Setting RNG state")
        engine.rng_state = self._random_state

    # -- running -------------------------------------------------------------------------------------------------

    def _count_towards_native(self, build: Build, engine: Engine) -> None:
        """After as many calls as the program itself fixes, compile it to native code.

        A job that has run for a while does not end because the compiler cannot work: it goes on as it was.
        """
        self._calls += 1
        code = build.executable.code
        if code.native_after is None or self._calls <= code.native_after:
            return
        logger.info("Compiling the program to native code after %d calls", self._calls - 1)
        try:
            with Progress(self._options, 0) as progress:
                self._use_native_code(build, engine, progress)
        except Exception as error:  # noqa: BLE001  whatever a compiler may raise
            what = f"{type(error).__name__}: {error}".partition("\n\nSet TORCHDYNAMO")[0]
            logger.warning("The program stays interpreted, because compiling it to native code failed: %s", what)
            self._install(build, engine, dataclasses.replace(code, native_after=None))

    def _use_native_code(self, build: Build, engine: Engine, progress: Progress) -> None:
        executable = build.executable
        self._install(build, engine, native_code(executable.device, executable.code, build.store, progress))

    @staticmethod
    def _install(build: Build, engine: Engine, code: HostCode) -> None:
        engine.install(code)
        build.executable = engine.executable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program on these arguments, the same that the user model's ``forward`` takes."""
        assert not self._offline, "Trying to run a model on an offline device"
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):  # device memory outlives the caller's mode
                return self(*args, **kwargs)
        call = self._bind(args, kwargs)
        if self._build is None:
            self._compile(call)
        elif self._device is None:
            self.attachToDevice()
        build, engine = self._compiled()
        if not self._training:
            self._follow_training()
        if self._traced:
            build.interface.layout.check_traced_count(call)
        given = build.interface.layout.tensors_of(call)
        if self._link is not None:
            with self._unwatched():
                self._link.upload(self._save_weights)
        specs = build.interface.layout.specs
        inputs = [self._normalise(tensor, spec.path) for tensor, spec in zip(given, specs, strict=True)]
        if build.executable.code.native_after is not None:
            self._count_towards_native(build, engine)
        if self._host_weights_stale and engine.wants_host_memory():
            self._lend_weights(engine)
        results = engine.run(inputs)
        self._after_run(build, given, inputs)
        return self._rebuild(build, results)

    def _after_run(self, build: Build, given: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        for index in build.interface.written_inputs:
            original, used = given[index], inputs[index]
            if original is not used and original.is_contiguous():
                original.detach().copy_(used)
        self._ran = self._ever_ran = True
        if self._training:
            self._host_weights_stale = True
            if self._link is not None:
                self._link.ran()

    def _rebuild(self, build: Build, results: Sequence[torch.Tensor]) -> Any:
        interface = build.interface
        constants = interface.host_results
        tensors = [
            (constants[i].clone() if position < 0 else results[position]).as_subclass(DeviceTensor)
            for i, position in enumerate(interface.result_positions)
        ]
        return tensors[0] if interface.returns_one_tensor else unflatten(interface.output_structure, tensors)

    # -- looking inside ------------------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The compiled program of one micro-batch; ``print`` it to read it."""
        return self._compiled()[0].executable.program

    @property
    def plan(self) -> Plan:
        """How IPUs share the compiled model; ``print`` it to read it."""
        return self._compiled()[0].executable.plan

    @property
    def executable(self) -> Executable:
        """The compiled model: what IPUs run, and the code by which this host runs it."""
        return self._compiled()[0].executable

    def drawSchedule(self, path: str | Path | None = None) -> str:
        """Draw what ran on which IPU in the latest call, beside what the execution strategy asks for.

        Returns the drawing as text; with a ``path`` that ends in ``.svg``, ``.png`` or ``.txt`` also writes it there.
        Measured is the last accumulation round of the latest call. A model in one piece has nothing to measure.

        >>> import poptorch
        >>> model = poptorch.inferenceModel(torch.nn.ReLU(), poptorch.Options().deviceIterations(3))
        >>> output = model(torch.ones(3))
        >>> print(model.drawSchedule())
        ideal, 0 % idle
        IPU0 | 0F 1F 2F
        """
        ideal, measured = self._compiled()[1].schedule()
        if path is not None:
            gantt.save(path, ideal, measured)
        return gantt.as_text(ideal, measured)


def _resolved_copy(options: Options, training: bool) -> Options:
    """The executor's own options: the output mode decided, anchors completed."""
    copied = options.clone()
    if copied.defaultOutputMode():
        copied.outputMode(OutputMode.Final if training else OutputMode.All)
    for anchor in copied.anchored_tensors.values():
        if anchor[1]:
            anchor[2] = copied.output_mode
            anchor[3] = copied.output_return_period if copied.output_mode == OutputMode.EveryN else 1
    return copied


def _unwrapped(model: Any) -> Any:
    return model._user_model if isinstance(model, PoplarExecutor) else model


def trainingModel(
    model: nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap a model for training on virtual IPUs: forward, backward and weight update in one compiled program.

    The model must compute its loss in ``forward``. Without an optimizer, SGD with a learning rate of 0.01 is used.

    >>> import poptorch
    >>> class WithLoss(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(2, 1)
    ...     def forward(self, x, target):
    ...         y = self.layer(x)
    ...         return y, torch.nn.functional.mse_loss(y, target)
    >>> training = poptorch.trainingModel(WithLoss())
    >>> output, loss = training(torch.ones(4, 2), torch.zeros(4, 1))
    >>> output.shape
    torch.Size([4, 1])
    """
    return PoplarExecutor(_unwrapped(model), options, training=True, optimizer=optimizer)


def inferenceModel(model: nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """Wrap a model for inference on virtual IPUs.

    >>> import poptorch
    >>> inference = poptorch.inferenceModel(torch.nn.ReLU())
    >>> inference(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return PoplarExecutor(_unwrapped(model), options, training=False)


def load(filename: str, edit_opts_fn: Callable[[Options], object] | None = None) -> PoplarExecutor:
    """An executor that is ready to run, from a file written by ``save`` or ``compileAndExport``.

    ``edit_opts_fn`` may change the options in place before the model is wrapped, for instance to choose a device. The
    model in the file is pickled: load files that you trust only.

    >>> import pathlib, poptorch, tempfile
    >>> path = str(pathlib.Path(tempfile.mkdtemp()) / "relu.poptorch")
    >>> poptorch.inferenceModel(torch.nn.ReLU()).compileAndExport(path, torch.zeros(2))
    >>> poptorch.load(path)(torch.tensor([-1.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    executor: PoplarExecutor = exporting.load(filename, edit_opts_fn, PoplarExecutor)
    return executor
