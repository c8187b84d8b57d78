"""What to compile: the model with one call's arguments, and the settings that its options stand for.

Lowering and scheduling read these settings. Capture, the operations and the optimizers' descriptions read
``poptorch.Options`` themselves, for what concerns the recording.
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
from poptorch.capture.arguments import ArgumentLayout, BoundCall, InputNormaliser, Signature, check_input
from poptorch.capture.front_end import FrontEnd
from poptorch.compiler.held import classify
from poptorch.compiler.memory import LOCATION_OPTIONS, Category, Location
from poptorch.compiler.passes.context import PassSettings
from poptorch.compiler.passes.recompute import Recomputation
from poptorch.compiler.plan import Ordering
from poptorch.enums import CommGroupType, ConnectionType, Liveness, MeanReductionStrategy, OutputMode
from poptorch.errors import createPoptorchError
from poptorch.optim.spec import describe
from poptorch.options.backend import resolve_derived
from poptorch.placement import ParallelPhasedExecution, SerialPhasedExecution, ShardedExecution, counting
from poptorch.program.anchors import Anchor
from poptorch.program.loop import Loop
from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import SourceLocation
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
        spec = describe(optimizer, resolved)
        resolved.Training.set(meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy(spec.strategy))
    call = Signature(model.forward).bind(tuple(args), dict(kwargs or {}))
    return CompileRequest(model, call, resolved, training, spec)


@dataclass(frozen=True)
class Settings:
    """What the options say about the program, in the compiler's own terms."""

    training: bool
    numerics: Numerics
    strategy: Any
    """The execution strategy."""

    ordering: Ordering
    """What the strategy asks for; without pipelining, pipelined parts run one after the other."""

    recomputation: Recomputation | None
    """What the user chose; ``None``: the default of the strategy."""

    overlap_loads: bool
    locations: Mapping[Category, Location]
    given_locations: tuple[str, ...]
    """Names of the categories whose location the user set."""

    private_buffers: bool
    """Whether each replica keeps buffers of its own."""

    synthetic_data: int
    anchors: tuple[Anchor, ...]
    passes: PassSettings
    """What the passes over the whole model are asked for."""

    groups: Mapping[str, ReplicaGrouping]
    backend: Mapping[str, Any] = field(repr=False)
    """All options of the backend as they were given, for the IPU Model."""

    memory_proportions: Mapping[int, float] = field(default_factory=dict)
    """Share of tile memory that products on an IPU may use temporarily, by its number, for the IPU Model."""

    io_tiles: int = 0
    """Tiles of each IPU that are set aside for input and output, for the IPU Model."""


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


def micro_batch_inputs(
    layout: ArgumentLayout,
    tensors: Sequence[torch.Tensor],
    loop: Loop,
    normalise: InputNormaliser,
    takes_empty: bool = False,
) -> list[torch.Tensor]:
    """The first micro-batch of every input, after checking types and sizes.

    ``takes_empty`` says whether an input may have no elements.
    """
    result = []
    for spec, tensor in zip(layout.specs, tensors, strict=True):
        check_input(tensor, spec.path, takes_empty)
        factor = loop.input_factor
        if factor > 1 and (tensor.ndim == 0 or tensor.shape[0] % factor):
            size = tensor.shape[0] if tensor.ndim else "no"
            raise AssertionError(
                f"Invalid batch dimension: In the input {spec.path} of shape {tuple(tensor.shape)}, the batch "
                f"dimension ({size}) must be a multiple of {loop.explain()} = {factor} because it is used to "
                "calculate the batch size which will be executed on the device in any given iteration. For a full "
                "explanation see docs/batching.md. [PT1003]"
            )
        tensor = normalise.with_strides(tensor, spec.path)
        result.append(tensor.narrow(0, 0, tensor.shape[0] // factor) if factor > 1 else tensor)
    return result


def check_request(request: CompileRequest) -> None:
    """Refuse options that contradict each other before anything is captured."""
    options, training = request.options, request.training
    if not training and options._Popart.options.get("automaticLossScalingSettings.enabled", False):
        raise createPoptorchError(
            "Automatic loss scaling is only supported for training: an inference model has no gradient to watch. Give "
            " poptorch.inferenceModel options without setAutomaticLossScaling(True)."
        )


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
        backend=types.MappingProxyType(dict(backend_options)),
        io_tiles=int(locations.toDict().get("numIOTiles", 0)),
        memory_proportions=types.MappingProxyType(dict(options.available_memory_proportion)),
    )


def _ordering(strategy: Any) -> Ordering:
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


def check_buffers(program: Program, by_user: Mapping[str, SourceLocation | None], options: Any, loop: Loop) -> None:
    """Refuse buffers that ``forward`` itself writes and that all replicas are to share.

    ``by_user`` are those, with the line. Running statistics of normalisations are no such buffers: each replica has its
    own.
    """
    if loop.replicas == 1 or not options.broadcast_buffers:
        return
    written = [p.name for p in program.mutated() if p.role in (Role.BUFFER, Role.PARAMETER) and p.name in by_user]
    if written:
        lines = (name if by_user[name] is None else f"{name} (at {by_user[name]})" for name in written)
        raise createPoptorchError(
            "PopTorch does not support broadcasting buffers. If your model is able to tolerate buffers becoming out of "
            "sync between replicas, you can disable buffer broadcasting using "
            f"poptorch.Options.broadcastBuffers(False). The model writes {', '.join(lines)}."
        )


@dataclass(frozen=True)
class Division:
    """How the program is divided, once its placements are known."""

    ordering: Ordering
    recomputation: Recomputation
    ipus_per_replica: int


def division_of(
    options: Any, settings: Settings, program: Program, loop: Loop, *, only_placed: bool = False
) -> Division:
    """Check the placement of the program, and say how IPUs share it."""
    strategy, placements, training = settings.strategy, program.placements(), settings.training
    counting.check_phase_ipus(strategy, placements)
    stages = counting.forward_stages(counting.starts_with_operations(program.block_starts, placements))
    ipus = counting.ipus_per_replica(p.ipu for p in placements)
    counting.check_ipu_count(
        ipus // options.Distributed.ipuBlocks or ipus,
        loop.replicas,
        auto_round=bool(options.auto_round_num_ipus),
        hardware=not uses_ipu_model(options) and not is_offline(options),
        details=counting.list_stages(stages),
    )
    if settings.backend.get("enablePipelining", True):
        if not only_placed:
            counting.check_pipeline_depth(
                strategy,
                stages,
                training=training,
                gradient_accumulation=loop.gradient_accumulation,
                device_iterations=loop.device_iterations,
            )
        edges = (
            (info.placement, other.placement)
            for info, other in program.forward_edges()
            if info.placement is not other.placement
        )
        counting.check_stage_order(strategy, edges)
    pipelining = resolve_derived(settings.backend, "enablePipelining", counting.uses_pipelining(strategy, ipus))
    backend.debug("enablePipelining set to value %d", pipelining)
    serial = settings.ordering is Ordering.PIPELINED and not pipelining
    default = Recomputation.PIPELINE if pipelining and training else Recomputation.OFF
    return Division(
        Ordering.SHARDED if serial else settings.ordering,
        default if settings.recomputation is None else settings.recomputation,
        ipus,
    )
