"""What to compile: the model with one call's arguments, and the settings that its options stand for.

Between the executor and the host, this module alone reads ``poptorch.Options``. Capture, the operations, the
optimizers' descriptions, the compiler and the IPU Model get settings, which are plain frozen data.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from poptorch import environment
from poptorch._logging import backend
from poptorch.ambient import CaptureSettings
from poptorch.capture.arguments import BoundCall, InputNormaliser, Signature
from poptorch.capture.front_end import FrontEnd
from poptorch.compiler.memory import LOCATION_OPTIONS, Location
from poptorch.compiler.passes.context import PassSettings
from poptorch.compiler.passes.recompute import Recomputation
from poptorch.compiler.plan import Ordering
from poptorch.compiler.settings import BackendSettings, Machine, Settings
from poptorch.compiler.update_anchors import classify
from poptorch.enums import (
    CommGroupType,
    ConnectionType,
    HalfFloatCastingBehavior,
    Liveness,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
)
from poptorch.optim.auto_loss_scale import LossScalingSettings
from poptorch.optim.settings import UpdateSettings
from poptorch.optim.spec import describe
from poptorch.placement import ExecutionStrategy, ParallelPhasedExecution, SerialPhasedExecution, ShardedExecution
from poptorch.program.anchors import Anchor
from poptorch.program.loop import Loop
from poptorch.program.numerics import Numerics
from poptorch.program.program import Program, Role
from poptorch.program.replica_groups import ReplicaGrouping

_STORES_FIRST = (Liveness.OffChipAfterFwdNoOverlap, Liveness.OffChipAfterEachPhase)
"""Where a phase is put away before the next one is loaded."""


@dataclass(frozen=True)
class CompileRequest:
    """A model, the arguments of one call, options and optimizer.

    Parameters and arguments may be on the meta device, or fake tensors: compiling needs no values.
    """

    model: nn.Module
    call: BoundCall
    options: Any
    training: bool
    optimizer_spec: Any = None
    """The description of the optimizer; needed for training."""

    normalise: InputNormaliser = field(default_factory=InputNormaliser)
    groups: Mapping[str, ReplicaGrouping] = field(default_factory=dict)
    """Parameters whose value differs between groups of replicas."""

    front_end: FrontEnd = field(default_factory=FrontEnd)
    """How the model is captured."""

    only_placed: bool = False
    """Whether the program is looked at for its placement, and need not fill a pipeline."""


def resolved_copy(options: Any, training: bool) -> Any:
    """The options of one model: the output mode decided, anchors completed."""
    copied = options.clone()
    if copied.defaultOutputMode():
        copied.outputMode(OutputMode.Final if training else OutputMode.All)
    for anchor in copied.anchored_tensors.values():
        if anchor[1]:
            anchor[2] = copied.output_mode
            anchor[3] = copied.output_return_period if copied.output_mode == OutputMode.EveryN else 1
    return copied


def request_for(
    model: nn.Module,
    options: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> CompileRequest:
    """What to compile for a model that is not wrapped, called with these arguments; with an optimizer, for training."""
    training = optimizer is not None
    resolved = resolved_copy(options, training)
    resolved.Precision.autocast_policy.apply(model, resolved)
    spec = None
    if optimizer is not None:
        spec = describe(optimizer, update_settings(resolved))
        resolved.Training.set(meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy(spec.strategy))
    call = Signature(model.forward).bind(tuple(args), dict(kwargs or {}))
    return CompileRequest(model, call, resolved, training, spec)


def is_offline(options: Any) -> bool:
    """Whether programs are only compiled, for another machine."""
    return bool(options.connection_type == ConnectionType.Never)


def uses_ipu_model(options: Any) -> bool:
    """Whether the options or the environment ask for the IPU Model instead of hardware."""
    if options.exists("use_model"):
        return bool(options.use_model)
    return environment.ipu_model_request().enabled


def loop_of(options: Any, training: bool) -> Loop:
    """The loop nest that the options ask for."""
    processes = options.Distributed
    loop = Loop(
        device_iterations=options.device_iterations,
        gradient_accumulation=options.Training.gradient_accumulation if training else 1,
        replicas=options.replication_factor,
        input_group_size=options.input_group_size,
        input_group_type=CommGroupType(options.input_cgt),
        output_mode=OutputMode(options.output_mode),
        return_period=options.output_return_period,
        first_replica=options.replication_factor * processes.dataPart,
        all_replicas=options.replication_factor * processes.numDataParts,
    )
    loop.check()
    return loop


def capture_settings(options: Any) -> CaptureSettings:
    """What the options say about capture.

    >>> from poptorch import Options
    >>> capture_settings(Options().replicationFactor(2)).replicas
    2
    """
    precision, jit = options.Precision, options.Jit
    return CaptureSettings(
        strict=bool(options.strict_compatibility),
        traced=bool(jit._tracing_requested),
        dispatched=not jit.trace_model,
        half_float_casting=HalfFloatCastingBehavior(precision.half_float_casting),
        float_statistics=bool(precision.running_statistics_always_float),
        autocast=precision.autocast_policy.names() if precision.autocast_enabled else None,
        excludes=tuple(options._source_location_excludes),
        names_modules=bool(options._module_namescope_enabled),
        replicas=int(options.replication_factor) * int(options.Distributed.numDataParts),
        strategy=options._execution_strategy,
        io_tiles=int(options.TensorLocations.toDict().get("numIOTiles", 0)),
        output_mode=OutputMode(options.output_mode),
    )


_AUTOMATIC = "automaticLossScalingSettings."


def scales_automatically(options: Any) -> bool:
    """Whether the loss scale is to find itself."""
    return bool(options._Popart.options.get(_AUTOMATIC + "enabled", False))


def update_settings(options: Any) -> UpdateSettings:
    """What the options say about one weight update; ``None`` stands for the defaults.

    >>> from poptorch import Options
    >>> options = Options().replicationFactor(2)
    >>> _ = options.Training.gradientAccumulation(8)
    >>> update_settings(options).contributions
    16
    """
    if options is None:
        return UpdateSettings()
    given, training = options._Popart.options, options.Training
    automatic = None
    if scales_automatically(options):
        automatic = LossScalingSettings(
            bin_edge=float(given.get(_AUTOMATIC + "binEdgeLocation", 0.125)),
            upper_proportion=float(given.get(_AUTOMATIC + "thresholdUpperCountProportion", 1e-7)),
            update_period=int(given.get(_AUTOMATIC + "updatePeriod", 1)),
        )
    return UpdateSettings(
        micro_batches=training.gradient_accumulation,
        replicas=options.replication_factor * options.Distributed.numDataParts,
        reduction=ReductionType(training.accumulation_and_replication_reduction_type),
        strategy=MeanReductionStrategy(training.meanAccumulationAndReplicationReductionStrategy),
        loss_scaling=automatic,
        strict=options.strict_compatibility,
    )


def backend_settings(given: Mapping[str, Any]) -> BackendSettings:
    """What options of the backend say to the IPU Model.

    >>> backend_settings({"partialsTypeMatMuls": "half"}).product_partials
    'half'
    """
    products, convolutions = (dict(given.get(name, {})) for name in ("matmulOptions", "convolutionOptions"))

    def share(of: Mapping[str, Any]) -> float | None:
        return float(of["availableMemoryProportion"]) if "availableMemoryProportion" in of else None

    return BackendSettings(
        product_partials=given.get("partialsTypeMatMuls", products.get("partialsType")),
        convolution_partials=convolutions.get("partialsType"),
        product_proportion=share(products),
        convolution_proportion=share(convolutions),
        outlining=bool(given.get("enableOutlining", True)),
    )


def backend_texts(options: Any, names: Sequence[str]) -> tuple[str, ...]:
    """What the options say about these settings of the backend, to be compared.

    >>> from poptorch import Options
    >>> backend_texts(Options(), ["autoRecomputation"])
    ('None',)
    """
    return tuple(str(options._Popart.options.get(name)) for name in names)


def splitting_settings(options: Any) -> tuple[BackendSettings, ExecutionStrategy | None]:
    """What decides how a model is split into stages: products, and what places blocks; ``None`` has no options."""
    if options is None:
        return BackendSettings(), None
    return backend_settings(options._Popart.options), options._execution_strategy


def settings_of(request: CompileRequest, program: Program, loop: Loop) -> Settings:
    """Resolve the options for a captured program."""
    options = request.options
    backend_options, strategy = options._Popart.options, options._execution_strategy
    ordering = _ordering(strategy)
    phased = ordering.is_phased
    chosen = backend_options.get("autoRecomputation")
    automatic = request.optimizer_spec.automatic_loss_scaling if request.optimizer_spec is not None else None
    locations, anchors = options.TensorLocations, _anchors(request, program)
    products = backend_options.get("partialsTypeMatMuls")
    convolutions = dict(backend_options.get("convolutionOptions", {})).get("partialsType")
    return Settings(
        training=request.training,
        numerics=Numerics.of(backend_options),
        strategy=strategy,
        ordering=ordering,
        recomputation=None if chosen is None else Recomputation(int(chosen)),
        overlap_loads=getattr(strategy, "_tensors_liveness", None) not in _STORES_FIRST,
        locations={
            category: Location.of(getattr(locations, name) if locations.exists(name) else {}, phased=phased)
            for category, name in LOCATION_OPTIONS.items()
        },
        given_locations=tuple(name for name in LOCATION_OPTIONS.values() if locations.exists(name)),
        private_buffers=loop.replicas > 1 and (not options.broadcast_buffers or _writes_buffers(program)),
        synthetic_data=int(backend_options.get("syntheticDataMode", 0)),
        anchors=anchors,
        passes=PassSettings(
            expects_host_results=bool(options.Jit._tracing_requested) or request.front_end.tells_host_results,
            returns_old_statistics=not request.training and not request.front_end.reads_what_it_wrote,
            product_partials=None if products is None else str(products),
            convolution_partials=None if convolutions is None else str(convolutions),
            anchors=tuple(a.long_name for a in anchors if a.held is None),
            loss_scaling_edge=None if automatic is None else automatic.edge,
            division=ordering.division,
        ),
        groups=types.MappingProxyType(dict(request.groups)),
        machine=Machine(
            hardware=not uses_ipu_model(options) and not is_offline(options),
            rounds_up=bool(options.auto_round_num_ipus),
            blocks=int(options.Distributed.ipuBlocks),
            own_block=int(options.Distributed.ipuBlock),
        ),
        backend=backend_settings(backend_options),
        io_tiles=int(locations.toDict().get("numIOTiles", 0)),
        broadcasts_buffers=bool(options.broadcast_buffers),
        pipelining=bool(backend_options["enablePipelining"]) if "enablePipelining" in backend_options else None,
        memory_proportions=types.MappingProxyType(dict(options.available_memory_proportion)),
    )


def _ordering(strategy: ExecutionStrategy) -> Ordering:
    if isinstance(strategy, SerialPhasedExecution):
        return Ordering.SERIAL_PHASED
    if isinstance(strategy, ParallelPhasedExecution):
        return Ordering.PARALLEL_PHASED
    return Ordering.SHARDED if isinstance(strategy, ShardedExecution) else Ordering.PIPELINED


def _anchors(request: CompileRequest, program: Program) -> tuple[Anchor, ...]:
    options, result = request.options, []
    parameters = [p.name for p in program.ports_of(Role.PARAMETER)]
    for short, (long_name, use_model_mode, mode, period) in options.anchored_tensors.items():
        if use_model_mode:
            mode, period = options.output_mode, options.output_return_period
        held, name = classify(long_name, parameters, request.optimizer_spec)
        result.append(Anchor(short, long_name, OutputMode(mode), period, held, name))
        shown = "Sum" if OutputMode(mode) is OutputMode.Sum else OutputMode(mode).name.upper()
        backend.debug("Anchoring tensor %s %s/%d", long_name, shown, period)
    return tuple(result)


def _writes_buffers(program: Program) -> bool:
    return any(port.role is Role.BUFFER for port in program.mutated())
