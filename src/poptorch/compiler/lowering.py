"""From a model and one call's arguments to what IPUs run."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from poptorch import hooks
from poptorch._logging import backend, ir_is_dumped, logger
from poptorch.ambient import CaptureSettings
from poptorch.capture.arguments import ArgumentLayout, announce_partial_support, positions_of_same
from poptorch.capture.functional import to_program
from poptorch.capture.gradient_hooks import check_accumulated
from poptorch.capture.refusals import lines_named
from poptorch.capture.state import check_dense, check_not_empty, collect_state
from poptorch.capture.structure import check_output_leaves
from poptorch.capture.tracer import Recording, Request
from poptorch.compiler.checks import check_buffers, check_loss_scaling, division_of, micro_batch_inputs
from poptorch.compiler.device_program import DeviceProgram, Interface
from poptorch.compiler.memory import Category, map_memory
from poptorch.compiler.observers import Dump, requested_dump, usual_observers
from poptorch.compiler.passes.context import Context
from poptorch.compiler.passes.planning import check_overlap
from poptorch.compiler.passes.stages import split
from poptorch.compiler.pipeline import DEVICE_PASSES, DIVIDING_PASSES, WHOLE_PASSES, Observer, lower
from poptorch.compiler.plan import Plan, divided, undivided
from poptorch.compiler.portion import Portion, blocks_of, check_optimizer
from poptorch.compiler.request import (
    CompileRequest,
    capture_settings,
    loop_of,
    scales_automatically,
    settings_of,
)
from poptorch.compiler.settings import ProgramDivision, Settings
from poptorch.compiler.update import build_update, is_divisible, needs_whole_tensors, shard_update
from poptorch.compiler.update_anchors import check_held
from poptorch.errors import createPoptorchError
from poptorch.optim.rows import RowwiseOptimizer
from poptorch.optim.rules import CombinedSGD
from poptorch.options import Options
from poptorch.placement import announcing
from poptorch.profiling.trace import NO_TRACE, SpanKind, Trace
from poptorch.program.graphs import copy_of
from poptorch.program.loop import Loop
from poptorch.program.naming import value_labels
from poptorch.program.opinfo import Sweep, info_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Port, Program, Role, is_write
from poptorch.program.replica_groups import ReplicaGrouping
from poptorch.program.tracing import tracing
from poptorch.program.update import UpdateProgram

STAGES = 3 + len(DEVICE_PASSES)
"""Of one lowering: capture, functional form, passes, update."""

Progress = Callable[[str], None]


def lower_for_device(
    request: CompileRequest,
    progress: Progress = lambda stage: None,
    trace: Trace = NO_TRACE,
    dump: Dump | None = None,
) -> DeviceProgram:
    """Capture the model and lower it to what IPUs run; ``progress`` hears of each stage, ``trace`` of each pass.

    ``dump`` takes the program after each pass; without one, ``POPTORCH_DUMP`` decides.

    Needs no device and no values: all tensors of the model and the arguments may be on the meta device. What depends
    on such tensors alone is then computed on the device, not in advance. A model whose Python asks for
    the value of a tensor is refused there.

    >>> from poptorch import Options
    >>> from poptorch.capture.arguments import Signature
    >>> model = torch.nn.Linear(4, 2, device="meta")
    >>> call = Signature(model.forward).bind((torch.empty(8, 4, device="meta"),), {})
    >>> print(lower_for_device(CompileRequest(model, call, Options(), training=False)).plan)
    sharded, 1 part
    whole model (stage 0, phase 0, IPU 0): 2 operations, receives 0 values (0 bytes), sends 0
    """
    observers = usual_observers(progress, requested_dump(request.training) if dump is None else dump, trace)
    return rewrite(request, progress, trace, observers).divided(progress=progress, observers=observers, copied=False)


def rewrite(
    request: CompileRequest,
    progress: Progress = lambda stage: None,
    trace: Trace = NO_TRACE,
    observers: Sequence[Observer] = (),
) -> Rewritten:
    """Capture the model and run the passes over the whole of it: what every division of it has in common."""
    check_loss_scaling(request.training, scales_automatically(request.options))
    capture = capture_settings(request.options)
    announce_partial_support(request.call)
    layout = ArgumentLayout(request.call)
    loop = loop_of(request.options, request.training)
    with trace.span(SpanKind.COMPILE, label="capture"):
        recording, program = _capture(request, capture, layout, loop, progress)
    settings = settings_of(request, program, loop)
    program.numerics = settings.numerics
    _check_overlap(program, capture)
    context = Context(settings.passes)
    lower(program, context, WHOLE_PASSES, observers)
    check_buffers(program, recording.written, settings, loop)
    return Rewritten(request, layout, recording, program, context)


@dataclass(frozen=True)
class Rewritten:
    """A captured model before it is divided over IPUs. Several divisions can start from it: the IPU Model tries them.

    >>> from poptorch import Options
    >>> from poptorch.capture.arguments import Signature
    >>> model = torch.nn.Linear(4, 2, device="meta")
    >>> call = Signature(model.forward).bind((torch.empty(8, 4, device="meta"),), {})
    >>> once = rewrite(CompileRequest(model, call, Options().deviceIterations(2), training=False))
    >>> [once.divided(Options().replicationFactor(n)).loop.replicas for n in (1, 2)]
    [1, 2]
    """

    request: CompileRequest
    layout: ArgumentLayout
    recording: Recording
    program: Program
    context: Context
    _updates: dict[bool, tuple[UpdateProgram | None, Any]] = field(default_factory=dict, repr=False)
    """With and without accumulators."""

    def divided(
        self,
        options: Options | None = None,
        edit: Callable[[Program], None] | None = None,
        *,
        progress: Progress = lambda stage: None,
        observers: Sequence[Observer] = (),
        copied: bool = True,
    ) -> DeviceProgram:
        """What IPUs run, with other ``options`` or after an ``edit`` of the program, such as to other places.

        The options must have micro-batches of the same size, and ask the passes for the same. Without ``copied`` this
        object is used up.
        """
        request = self.request if options is None else dataclasses.replace(self.request, options=options)
        recording, program, context = self.recording, self.program, self.context
        if copied:
            program, _ = copy_of(program)
            context = dataclasses.replace(context, summaries=dict(context.summaries), carried=list(context.carried))
        if edit is not None:
            edit(program)
        loop = loop_of(request.options, request.training)
        settings = settings_of(request, program, loop)
        division = division_of(settings, program, loop, only_placed=request.only_placed)
        _announce(program, settings)
        before, plan = _divide(program, context, settings, division, observers)
        if ir_is_dumped():
            backend.debug("Program:\n%s", program)
        progress("update")
        update, used = self._update(program, settings, loop)
        check_held(settings.anchors, update, used)
        memory = map_memory(program, plan, loop, settings.locations, update, settings.groups)
        sharded = memory.is_sharded(Category.OPTIMIZER)
        portion = _portion(program, plan, recording, request, settings, loop, division, sharded)
        if update is not None:
            update = _sharded(update, used, program, settings, loop, sharded)
        return DeviceProgram(
            program=program,
            update=update,
            plan=plan,
            loop=loop,
            memory=memory,
            settings=settings,
            undivided=before,
            recomputation=division.recomputation,
            ipus_per_replica=division.ipus_per_replica,
            watch=context.watch,
            interface=Interface(
                layout=self.layout,
                output_structure=recording.output_structure,
                result_positions=_positions(recording.num_results, context.host_results),
                host_results=context.host_results,
                written_inputs=tuple(port.index for port in written_inputs(program)),
                same_inputs=positions_of_same(self.layout.tensors_of(request.call)),
                optimizer=used,
                written_state=frozenset(recording.written),
            ),
            portion=portion,
        )

    def _update(self, program: Program, settings: Settings, loop: Loop) -> tuple[UpdateProgram | None, Any]:
        accumulates = loop.gradient_accumulation > 1
        if accumulates not in self._updates:
            spec = self.request.optimizer_spec
            self._updates[accumulates] = _update(program, self.recording, spec, settings, loop)
        return self._updates[accumulates]


# -- capture -------------------------------------------------------------------------------------------------------


def _capture(
    request: CompileRequest, capture: CaptureSettings, layout: ArgumentLayout, loop: Loop, progress: Progress
) -> tuple[Recording, Program]:
    given = layout.tensors_of(request.call)
    inputs = micro_batch_inputs(layout, given, loop, request.normalise, request.front_end.takes_empty)
    check_dense(collect_state(request.model))
    check_not_empty(request.model)
    if request.training:
        check_accumulated(request.model, loop.all_micro_batches_per_update, scaled=_is_scaled(request.optimizer_spec))
    with tracing(), lines_named(request.model, capture.excludes):
        progress("capture")
        recording, program = _functional(request, capture, layout, inputs, progress)
        same = positions_of_same(given)
        if any(same.count(same[port.index]) > 1 for port in written_inputs(program)):
            # One tensor for several arguments, and forward() writes to it: all of them must see that.
            recording, program = _functional(request, capture, layout, inputs, progress, same)
        return recording, program


def written_inputs(program: Program) -> list[Port]:
    """The inputs that the program changes in place."""
    return [port for port in program.mutated() if port.role is Role.INPUT]


def _functional(
    request: CompileRequest,
    capture: CaptureSettings,
    layout: ArgumentLayout,
    inputs: list[torch.Tensor],
    progress: Progress,
    same: tuple[int, ...] = (),
) -> tuple[Recording, Program]:
    recording = _recorded(request, capture, layout, inputs, same)
    check_output_leaves(recording.output_structure)
    progress("functional form")
    return recording, to_program(recording, [spec.path for spec in layout.specs])


def _recorded(
    request: CompileRequest,
    capture: CaptureSettings,
    layout: ArgumentLayout,
    inputs: list[torch.Tensor],
    same: tuple[int, ...],
) -> Recording:
    spec = request.optimizer_spec
    trained: set[int] = set()
    scaled = False
    if request.training:
        trained = {id(p) for group in spec.groups for p in group.parameters}
        scaled = _is_scaled(spec)
    hooks.run_pre()
    try:
        with _only_the_error():
            return request.front_end.recording(
                Request(
                    request.model,
                    layout,
                    inputs,
                    request.training,
                    frozenset(trained),
                    capture,
                    scaled,
                    frozenset(request.groups),
                    same,
                )
            )
    finally:
        hooks.run_post()


def _is_scaled(spec: Any) -> bool:
    """Whether the program multiplies the loss."""
    constant = spec.loss_scaling.is_constant and spec.loss_scaling.value == 1.0
    return spec.automatic_loss_scaling is not None or not constant


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


# -- passes --------------------------------------------------------------------------------------------------------


def _check_overlap(program: Program, settings: CaptureSettings) -> None:
    inputs = {node: port.name for node, port in program.placeholders() if port.role is Role.INPUT}
    check_overlap(program.graph, inputs, program.values_of(OutputKind.RESULT), settings)


def _positions(count: int, constants: Mapping[int, torch.Tensor]) -> tuple[int, ...]:
    positions, next_one = [], 0
    for index in range(count):
        if index in constants:
            positions.append(-1)
        else:
            positions.append(next_one)
            next_one += 1
    return tuple(positions)


def _announce(program: Program, settings: Settings) -> None:
    """Log what the strategy implies and where each forward operation runs."""
    if not backend.isEnabledFor(logging.DEBUG):
        return
    for line in announcing.strategy_lines(settings.strategy, list(settings.given_locations)):
        backend.debug("%s", line)
    for node, name in value_labels(program.operations()).items():
        info, value = info_of(node), node.meta.get("val")
        if info.sweep is not Sweep.FORWARD or not isinstance(value, torch.Tensor) or is_write(node):
            continue
        kind = f"{str(value.dtype).removeprefix('torch.')}({', '.join(map(str, value.shape))})"
        backend.debug("%s [%s, %s]", name, kind, announcing.placement_of(settings.strategy, info.placement))


def _divide(
    program: Program, context: Context, settings: Settings, division: ProgramDivision, observers: Sequence[Observer]
) -> tuple[Program, Plan]:
    """Prepare the program for being cut into stages, and cut it; returns also the program as it was before."""
    before, _ = copy_of(program)
    context.settings = dataclasses.replace(
        context.settings, division=division.ordering.division, recomputation=division.recomputation
    )
    lower(program, context, DIVIDING_PASSES, observers)
    if len(context.divided.parts) == 1:
        computed_again = any(info_of(node).recomputed for node in program.operations())
        return before if computed_again else program, undivided(program)  # all else that was done is to drop dead code
    cut = split(program, context.divided, context.carried)
    plan = divided(division.ordering, cut, overlap_loads=settings.overlap_loads)
    program.log += str(plan).splitlines()
    return before, plan


# -- the update ----------------------------------------------------------------------------------------------------


def _portion(
    program: Program,
    plan: Plan,
    recording: Recording,
    request: CompileRequest,
    settings: Settings,
    loop: Loop,
    division: ProgramDivision,
    sharded: bool,
) -> Portion | None:
    """What this process runs, where several share each replica."""
    machine = settings.machine
    if machine.blocks == 1:
        return None
    blocks = blocks_of(program, plan, division.ipus_per_replica, machine.own_block, machine.blocks)
    update, used = _update(program, recording, request.optimizer_spec, settings, loop, blocks.updated_here)
    check_optimizer(used)
    if update is not None:
        update = _sharded(update, used, program, settings, loop, sharded)
    return Portion(blocks, update, used)


def _update(
    program: Program,
    recording: Recording,
    spec: Any,
    settings: Settings,
    loop: Loop,
    only: frozenset[str] | None = None,
) -> tuple[UpdateProgram | None, Any]:
    """The update program, and the description of the optimizer without unused parameters; ``only`` these, if given."""
    if not settings.training or not program.gradients:
        return None, None
    groups = settings.groups
    names = {id(recording.state[i].tensor): recording.state[i].name for i in recording.gradients}
    if only is not None:
        names = {key: name for key, name in names.items() if name in only}
    types = _stored_types(program, groups)
    used = restrict(spec, frozenset(names))
    members = [[names[id(p)] for p in group.parameters] for group in used.groups]
    accumulators = {
        name: group.accum_type
        for group, group_names in zip(used.groups, members, strict=True)
        for name in group_names
        if group.accum_type is not None and loop.gradient_accumulation > 1
    }
    missing = sorted(set(types) - set(program.gradients))
    if missing:
        logger.debug("No gradient for %s: they are not updated", ", ".join(missing))
    rules = _by_rows(used, members, groups) if groups and needs_whole_tensors(used) else used
    update = build_update(rules, members, types, accumulators, program.numerics)
    combined = frozenset(
        name
        for group, group_names in zip(used.groups, members, strict=True)
        for name in group_names
        if isinstance(group.rule, CombinedSGD)
    )
    return dataclasses.replace(update, combined=combined, running_mean=_averages_as_it_goes(used)), used


def _sharded(
    update: UpdateProgram, optimizer: Any, program: Program, settings: Settings, loop: Loop, wanted: bool
) -> UpdateProgram:
    """The update in parts where replicas own shards of the optimizer's state."""
    if not wanted:
        return update
    if not is_divisible(optimizer, program.numerics):
        backend.debug("The optimizer's state is sharded, but its update needs whole tensors: they are gathered first")
        return update
    location, replicas = settings.locations[Category.OPTIMIZER], loop.replicas_of_job
    types = _stored_types(program, settings.groups)
    return shard_update(
        optimizer,
        update,
        types,
        replicas,
        range(loop.first_replica, loop.first_replica + loop.replicas),
        lambda name, elements: name not in settings.groups and location.is_sharded(elements, replicas),
    )


def _by_rows(spec: Any, members: list[list[str]], groups: Mapping[str, ReplicaGrouping]) -> RowwiseOptimizer:
    """The optimizer with norms of its own for every group of replicas."""
    replicas = next(iter(groups.values())).replicas
    holders = [[groups[name].holders if name in groups else None for name in names] for names in members]
    return RowwiseOptimizer(spec, holders, replicas)


def _stored_types(
    program: Program, groups: Mapping[str, ReplicaGrouping]
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of each parameter with all its values, of whatever group of replicas."""

    def shape(port: Port) -> tuple[int, ...]:
        return (groups[port.name].count, *port.shape) if port.name in groups else port.shape

    return {port.name: (shape(port), port.dtype) for port in program.ports_of(Role.PARAMETER)}


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
