"""From a wrapped model and one call's arguments to an executable: capture, passes, code generation."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from poptorch import hooks
from poptorch._logging import backend, logger
from poptorch.capture.arguments import (
    ArgumentLayout,
    BoundCall,
    InputNormaliser,
    announce_partial_support,
    check_input,
)
from poptorch.capture.functional import to_program
from poptorch.capture.state import check_not_empty, collect_state
from poptorch.capture.structure import Structure, TensorLeaf, check_output_leaves
from poptorch.capture.tracer import Recording, Request, record
from poptorch.compiler.memory import Category, Location, map_memory
from poptorch.compiler.observers import Dump, requested_dump, usual_observers
from poptorch.compiler.passes.anchors import updated_parameter
from poptorch.compiler.passes.context import Context, Settings
from poptorch.compiler.passes.recompute import Recomputation
from poptorch.compiler.passes.slots import Division
from poptorch.compiler.pipeline import DEVICE_PASSES, DIVIDING_PASSES, HOST_PASSES, WHOLE_PASSES, Observer, lower
from poptorch.compiler.plan import Ordering, Plan, make_plan, whole_plan
from poptorch.compiler.sharding import is_divisible, needs_whole_tensors, shard_update
from poptorch.compiler.update import UpdateProgram, build_update
from poptorch.enums import CommGroupType, Liveness, OutputMode
from poptorch.errors import createPoptorchError
from poptorch.executable.executable import Anchor, Executable
from poptorch.host.factoring import generate_factored
from poptorch.host.grouping.choice import bundle
from poptorch.host.interpret.code import Generated, generate
from poptorch.host.levels import calls_at_first_level, level_for
from poptorch.ops.planning import check_overlap
from poptorch.optim.rows import RowwiseOptimizer
from poptorch.options.backend import resolve_derived
from poptorch.placement import ParallelPhasedExecution, SerialPhasedExecution, ShardedExecution, announcing, counting
from poptorch.program.graphs import copy_of
from poptorch.program.loop import Loop
from poptorch.program.naming import value_labels
from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import Sweep, info_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Port, Program, Role, is_write
from poptorch.program.replica_groups import ReplicaGrouping

STAGES = 5 + len(DEVICE_PASSES)
"""Of one compilation: capture, functional form, passes, the host's program, code, update."""

_tracing = threading.RLock()
"""Torch's tracer patches modules of the whole process: one thread at a time. Re-entrant, because a compile hook may
compile another model."""


@dataclass
class Build:
    """A compiled model and what is needed to call it with the user's own structures."""

    executable: Executable
    layout: ArgumentLayout
    output_structure: Structure
    ipus_per_replica: int
    written_inputs: list[int]
    """Positions of the inputs that ``forward`` changes in place."""

    result_positions: list[int] = field(default_factory=list)
    """For each tensor of the output structure, its position among the device results, or -1 for a host constant."""

    optimizer: Any = None
    """Description of the optimizer, restricted to the parameters that a gradient reaches."""

    def __post_init__(self) -> None:
        self.returns_one_tensor = isinstance(self.output_structure, TensorLeaf)


def loop_of(options: Any, training: bool) -> Loop:
    """The loop nest that the options ask for."""
    loop = Loop(
        device_iterations=options.device_iterations,
        gradient_accumulation=options.Training.gradient_accumulation if training else 1,
        replicas=options.replication_factor,
        input_group_size=options.input_group_size,
        input_group_type=CommGroupType(options.input_cgt),
        output_mode=OutputMode(options.output_mode),
        return_period=options.output_return_period,
    )
    loop.check()
    return loop


def micro_batch_inputs(
    layout: ArgumentLayout, tensors: Sequence[torch.Tensor], loop: Loop, normalise: InputNormaliser
) -> list[torch.Tensor]:
    """The first micro-batch of every input, after checking types and sizes."""
    result = []
    for spec, tensor in zip(layout.specs, tensors, strict=True):
        check_input(tensor)
        factor = loop.input_factor
        if factor > 1 and (tensor.ndim == 0 or tensor.shape[0] % factor):
            size = tensor.shape[0] if tensor.ndim else "no"
            raise AssertionError(
                f"Invalid batch dimension: In the input {spec.path} of shape {tuple(tensor.shape)}, the batch "
                f"dimension ({size}) must be a multiple of {loop.explain()} = {factor} because it is used to "
                "calculate the batch size which will be executed on the device in any given iteration. For a full "
                "explanation see the batching semantics page of the documentation."
            )
        tensor = normalise(tensor, spec.path)
        result.append(tensor.narrow(0, 0, tensor.shape[0] // factor) if factor > 1 else tensor)
    return result


@dataclass(frozen=True)
class CompileRequest:
    """What to compile."""

    model: nn.Module
    call: BoundCall
    options: Any
    training: bool
    optimizer_spec: Any
    normalise: InputNormaliser
    groups: Mapping[str, ReplicaGrouping] = field(default_factory=dict)
    """Parameters whose value differs between groups of replicas."""

    placed: Callable[[int], None] | None = None
    """Told the number of IPUs of a replica as soon as it is known, before code is generated."""


def compile_model(request: CompileRequest, progress: Callable[[str], None]) -> Build:
    """Capture the model with the arguments of the call and compile it; ``progress`` hears of each stage."""
    model, options, training = request.model, request.options, request.training
    optimizer_spec = request.optimizer_spec
    _check_loss_scaling(options, training)
    announce_partial_support(request.call)
    layout = ArgumentLayout(request.call)
    loop = loop_of(options, training)
    inputs = micro_batch_inputs(layout, layout.tensors_of(request.call), loop, request.normalise)
    check_not_empty(collect_state(model))
    with _tracing, _use_lazy_graph_module(True):
        progress("capture")
        recording = _capture(model, layout, inputs, request)
        check_output_leaves(recording.output_structure)
        progress("functional form")
        program = to_program(recording, [spec.path for spec in layout.specs])
    program.numerics = Numerics.of(options._Popart.options)
    _check_overlap(program, options)
    anchors = _anchors(options, program, loop)
    context = Context(_settings(options, optimizer_spec, anchors, training))
    dump = requested_dump(training)
    observers = usual_observers(progress, dump)
    lower(program, context, WHOLE_PASSES, observers)
    _check_buffers(program, options, loop)
    ipus = _check_placement(program, options, training, loop)
    if request.placed is not None:
        request.placed(ipus)
    _announce(program, options)
    progress("program of the host")
    make_code = _factoring if training and loop.micro_batches_per_update > 1 else generate
    host_program = _bundle(program, request, loop, ipus) if not anchors and not context.watch.elements else program
    loop = dataclasses.replace(loop, bundle=host_program.bundle)
    divided, host_context = _divide(program, host_program, context, options, ipus, observers, dump)
    progress("code")
    plan = _plan(program, divided, context, host_context, options, make_code)
    alone = plan is None and loop.replicas == 1 and not request.groups
    generated = make_code(host_program)
    if plan is None and not alone:
        plan = whole_plan(host_program, generated)
    executable = Executable(
        program=program,
        micro_batch=generated,
        host_program=host_program,
        loop=loop,
        host_results=context.host_results,
        anchors=anchors,
        private_buffers=not options.broadcast_buffers and loop.replicas > 1,
        synthetic_data=int(options._Popart.options.get("syntheticDataMode", 0)),
        plan=plan,
        groups=dict(request.groups),
        watch=context.watch,
    )
    micro_batches = loop.device_iterations * loop.micro_batches_per_update
    executable.native_after = calls_at_first_level(level_for(program), program, micro_batches)
    used = None
    if training and program.gradients:
        progress("update")
        accumulates = loop.gradient_accumulation > 1
        with _tracing, _use_lazy_graph_module(True):
            executable.update, used, executable.accumulator_types = _update(
                program, recording, optimizer_spec, accumulates, request.groups
            )
        executable.running_mean = _averages_as_it_goes(used)
    _place_tensors(executable, options, used)
    backend.debug("Finished Poplar compilation")
    written = [p.index for p in program.mutated() if p.role is Role.INPUT]
    return Build(
        executable,
        layout,
        recording.output_structure,
        ipus,
        written,
        _positions(recording.num_results, context.host_results),
        used,
    )


def _capture(
    model: nn.Module,
    layout: ArgumentLayout,
    inputs: list[torch.Tensor],
    request: CompileRequest,
) -> Recording:
    options, training, optimizer_spec = request.options, request.training, request.optimizer_spec
    trained: set[int] = set()
    scaled = False
    if training:
        trained = {id(p) for group in optimizer_spec.groups for p in group.parameters}
        scaled = not (optimizer_spec.loss_scaling.is_constant and optimizer_spec.loss_scaling.value == 1.0)
        scaled |= optimizer_spec.automatic_loss_scaling is not None
    hooks.run_pre()
    try:
        with _only_the_error():
            grouped = frozenset(request.groups)
            return record(Request(model, layout, inputs, training, frozenset(trained), options, scaled, grouped))
    finally:
        hooks.run_post()


@contextmanager
def _only_the_error() -> Iterator[None]:
    """Torch also logs, with its own inner traceback, each error that it raises on fake tensors."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _check_overlap(program: Program, options: Any) -> None:
    inputs = {node: port.name for node, port in program.placeholders() if port.role is Role.INPUT}
    check_overlap(program.graph, inputs, program.values_of(OutputKind.RESULT), options)


def _positions(count: int, constants: dict[int, torch.Tensor]) -> list[int]:
    positions, next_one = [], 0
    for index in range(count):
        if index in constants:
            positions.append(-1)
        else:
            positions.append(next_one)
            next_one += 1
    return positions


def _anchors(options: Any, program: Program, loop: Loop) -> list[Anchor]:
    result = []
    for short, (long_name, use_model_mode, mode, period) in options.anchored_tensors.items():
        if use_model_mode:
            mode, period = options.output_mode, options.output_return_period
        loop.check(OutputMode(mode), period)
        parameter = updated_parameter(long_name, [p.name for p in program.ports_of(Role.PARAMETER)])
        result.append(Anchor(short, long_name, OutputMode(mode), period, parameter))
        shown = "Sum" if OutputMode(mode) is OutputMode.Sum else OutputMode(mode).name.upper()
        backend.debug("Anchoring tensor %s %s/%d", long_name, shown, period)
    return result


def _settings(options: Any, optimizer_spec: Any, anchors: list[Anchor], training: bool) -> Settings:
    """What the passes are asked for."""
    backend_options, ordering = options._Popart.options, _ordering(options._execution_strategy)
    products = backend_options.get("partialsTypeMatMuls")
    convolutions = dict(backend_options.get("convolutionOptions", {})).get("partialsType")
    automatic = optimizer_spec.automatic_loss_scaling if optimizer_spec is not None else None
    pipelined = backend_options.get("enablePipelining", ordering is Ordering.PIPELINED)
    default = Recomputation.PIPELINE if pipelined and training else Recomputation.OFF
    return Settings(
        expects_host_results=bool(options.Jit._tracing_requested),
        product_partials=None if products is None else str(products),
        convolution_partials=None if convolutions is None else str(convolutions),
        anchors=tuple(a.long_name for a in anchors if a.parameter is None),
        loss_scaling_edge=None if automatic is None else automatic.edge,
        division=Division.SHARDS if ordering is Ordering.PIPELINED and not pipelined else ordering.division,
        recomputation=Recomputation(int(backend_options.get("autoRecomputation", default))),
    )


def _check_loss_scaling(options: Any, training: bool) -> None:
    if not training and options._Popart.options.get("automaticLossScalingSettings.enabled", False):
        raise createPoptorchError(
            "Automatic loss scaling is only supported for training: an inference model has no gradient to watch. Give "
            " poptorch.inferenceModel options without setAutomaticLossScaling(True)."
        )


def _check_buffers(program: Program, options: Any, loop: Loop) -> None:
    written = [p.name for p in program.mutated() if p.role in (Role.BUFFER, Role.PARAMETER)]
    if written and loop.replicas > 1 and options.broadcast_buffers:
        raise createPoptorchError(
            "PopTorch does not support broadcasting buffers. If your model is able to tolerate buffers becoming out of "
            "sync between replicas, you can disable buffer broadcasting using "
            f"poptorch.Options.broadcastBuffers(False). The model writes {', '.join(written)}."
        )


def _check_placement(program: Program, options: Any, training: bool, loop: Loop) -> int:
    strategy, placements = options._execution_strategy, program.placements()
    counting.check_phase_ipus(strategy, placements)
    if options._Popart.options.get("enablePipelining", True):
        counting.check_pipeline_depth(
            strategy,
            program.block_starts,
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
    ipus = counting.ipus_per_replica(p.ipu for p in placements)
    counting.check_ipu_limit(ipus, loop.replicas)
    return ipus


def _announce(program: Program, options: Any) -> None:
    """Log what the strategy implies and where each forward operation runs."""
    if not backend.isEnabledFor(logging.DEBUG):
        return
    strategy, locations = options._execution_strategy, options.TensorLocations
    given = [c.value for c in Category if locations.exists(c.value)]
    for line in announcing.strategy_lines(strategy, given):
        backend.debug("%s", line)
    for node, name in value_labels(program.operations()).items():
        info, value = info_of(node), node.meta.get("val")
        if info.sweep is not Sweep.FORWARD or not isinstance(value, torch.Tensor) or is_write(node):
            continue
        kind = f"{str(value.dtype).removeprefix('torch.')}({', '.join(map(str, value.shape))})"
        backend.debug("%s [%s, %s]", name, kind, announcing.placement_of(strategy, info.placement))


def _place_tensors(executable: Executable, options: Any, optimizer: Any) -> None:
    """Decide where tensors live, and cut the update where replicas own shards of the optimizer's state."""
    settings, replicas = options.TensorLocations, executable.loop.replicas
    phased = _ordering(options._execution_strategy).is_phased
    executable.locations = {
        c: Location.of(getattr(settings, c.value) if settings.exists(c.value) else {}, phased=phased) for c in Category
    }
    program, update = executable.program, executable.update
    held = {p.name: (p.shape, p.dtype) for p in program.ports_of(Role.PARAMETER)}
    state = []
    if update is not None:
        for group, names in zip(optimizer.groups, update.parameters, strict=True):
            made = group.rule.init_state([torch.empty(held[n][0], dtype=held[n][1], device="meta") for n in names])
            for key, tensors in made.items():
                state += [(f"{key}___{n}", n, t.numel(), t.itemsize) for n, t in zip(names, tensors, strict=True)]
    executable.memory = map_memory(program, executable.plan, executable.locations, replicas, state)
    location = executable.locations[Category.OPTIMIZER]
    if update is None or not any(h.shards > 1 for h in executable.memory.homes if h.category is Category.OPTIMIZER):
        return
    if not is_divisible(optimizer, program.numerics):
        backend.debug("The optimizer's state is sharded, but its update needs whole tensors: they are gathered first")
        return
    with _tracing:
        executable.update_shards = shard_update(
            optimizer,
            update.parameters,
            {p.name: (_stored_shape(p, executable.groups), p.dtype) for p in program.ports_of(Role.PARAMETER)},
            executable.accumulator_types,
            program.numerics,
            replicas,
            lambda name, elements: name not in executable.groups and location.is_sharded(elements, replicas),
        )


def _factoring(program: Program) -> Generated:
    """Code for programs whose gradients are added up."""
    return generate_factored(program, generate)


def _bundle(program: Program, request: CompileRequest, loop: Loop, ipus: int) -> Program:
    """The program for as many micro-batches as the host computes at once."""
    strategy = request.options._execution_strategy
    groups = request.optimizer_spec.groups if request.training else ()
    # Gradients of a bundle are summed. Whoever wants to see something else of each micro-batch gets it.
    summed = all(not g.reduction.running and g.accum_type in (None, torch.float32) for g in groups)
    if not summed or request.groups or _ordering(strategy).is_phased:
        return program
    with _tracing, _use_lazy_graph_module(True):
        return bundle(program, loop, ipus if counting.uses_pipelining(strategy, ipus) else 1)


def _divide(
    program: Program,
    host_program: Program,
    context: Context,
    options: Any,
    ipus: int,
    observers: Sequence[Observer],
    dump: Dump | None,
) -> tuple[Program, Context]:
    """Prepare the program for being cut, and the host's if that is another one; returns the latter."""
    settings, backend_options = context.settings, options._Popart.options
    pipelined = resolve_derived(
        backend_options, "enablePipelining", counting.uses_pipelining(options._execution_strategy, ipus)
    )
    backend.debug("enablePipelining set to value %d", pipelined)
    # What the user asks for is done. What is only the habit of an IPU costs a host more than it saves.
    unasked = settings.recomputation is Recomputation.PIPELINE and "autoRecomputation" not in backend_options
    if unasked and pipelined:
        settings = dataclasses.replace(settings, recomputation=Recomputation.CHEAP)
        if host_program is program and program.training:
            host_program, _ = copy_of(program)
    lower(program, context, DIVIDING_PASSES, observers)
    if host_program is program:
        return program, context
    host_context = Context(settings)
    lower(host_program, host_context, HOST_PASSES, [] if dump is None else [dump.of_host()])
    return host_program, host_context


def _plan(
    program: Program,
    host_program: Program,
    context: Context,
    host_context: Context,
    options: Any,
    make_code: Callable[[Program], Generated],
) -> Plan | None:
    """The pieces of a model that the strategy divides; ``None`` when it is one piece."""
    strategy = options._execution_strategy
    ordering = _ordering(strategy)
    if ordering is Ordering.PIPELINED and context.settings.division is Division.SHARDS:
        ordering = Ordering.SHARDED
    overlap = getattr(strategy, "_tensors_liveness", None) not in _STORES_FIRST
    plan = make_plan(program, context, host_program, host_context, ordering, make_code, overlap_loads=overlap)
    if plan is not None:
        program.log += plan.log
    return plan


_STORES_FIRST = (Liveness.OffChipAfterFwdNoOverlap, Liveness.OffChipAfterEachPhase)
"""Where a phase is put away before the next one is loaded."""


def _ordering(strategy: Any) -> Ordering:
    if isinstance(strategy, SerialPhasedExecution):
        return Ordering.SERIAL_PHASED
    if isinstance(strategy, ParallelPhasedExecution):
        return Ordering.PARALLEL_PHASED
    return Ordering.SHARDED if isinstance(strategy, ShardedExecution) else Ordering.PIPELINED


def _update(
    program: Program, recording: Recording, spec: Any, accumulates: bool, groups: Mapping[str, ReplicaGrouping]
) -> tuple[UpdateProgram, Any, dict[str, torch.dtype]]:
    """The update program, the description of the optimizer without unused parameters, and accumulator types."""
    names = {id(recording.state[i].tensor): recording.state[i].name for i in recording.gradients}
    ports = {p.name: (_stored_shape(p, groups), p.dtype) for p in program.ports_of(Role.PARAMETER)}
    used = restrict(spec, frozenset(names))
    members = [[names[id(p)] for p in group.parameters] for group in used.groups]
    types = {
        name: group.accum_type
        for group, group_names in zip(used.groups, members, strict=True)
        for name in group_names
        if group.accum_type is not None and accumulates
    }
    missing = sorted(set(ports) - set(program.gradients))
    if missing:
        logger.debug("No gradient for %s: they are not updated", ", ".join(missing))
    rules = _by_rows(used, members, groups) if groups and needs_whole_tensors(used) else used
    return build_update(rules, members, ports, types, program.numerics), used, types


def _by_rows(spec: Any, members: list[list[str]], groups: Mapping[str, ReplicaGrouping]) -> RowwiseOptimizer:
    """The optimizer with norms of its own for every group of replicas."""
    replicas = next(iter(groups.values())).replicas
    holders = [[groups[name].holders if name in groups else None for name in names] for names in members]
    return RowwiseOptimizer(spec, holders, replicas)


def _stored_shape(port: Port, groups: Mapping[str, ReplicaGrouping]) -> tuple[int, ...]:
    """The shape of a parameter with all its values, of whatever group of replicas."""
    return (groups[port.name].count, *port.shape) if port.name in groups else port.shape


def _averages_as_it_goes(spec: Any) -> bool:
    """Whether gradients are averaged as they come: one answer for all groups, which share the accumulation."""
    answers = {group.reduction.running for group in spec.groups if group.parameters}
    if len(answers) > 1:
        raise createPoptorchError(
            "Parameter groups with and without momentum cannot be combined with use_combined_accum=True and "
            "MeanReductionStrategy.Running: their gradients are accumulated differently. Use "
            "use_combined_accum=False, or MeanReductionStrategy.Post."
        )
    return True in answers


def restrict(spec: Any, parameters: frozenset[int]) -> Any:
    """The optimizer without the parameters that no gradient reaches; ``parameters`` are ids of those that stay."""
    groups = tuple(
        dataclasses.replace(g, parameters=tuple(p for p in g.parameters if id(p) in parameters)) for g in spec.groups
    )
    return dataclasses.replace(spec, groups=groups)
