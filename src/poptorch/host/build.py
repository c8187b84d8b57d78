"""From a device program to the code that this host runs, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poptorch._logging import logger
from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.observers import Dump
from poptorch.compiler.passes.context import Context, PassSettings
from poptorch.compiler.passes.slots import Division
from poptorch.compiler.passes.stages import Cut, StageProgram, split
from poptorch.compiler.pipeline import lower
from poptorch.compiler.plan import whole_stage
from poptorch.devices.cores import CoreShare
from poptorch.errors import createPoptorchError
from poptorch.executable.groups import HostLoop, group_size_of
from poptorch.executable.host_code import ELSEWHERE, Code, HostCode, HostStage
from poptorch.host.factoring import NO_PRODUCTS, in_factors
from poptorch.host.grouping.choice import group
from poptorch.host.interpret.code import generate, generate_flat, generate_step
from poptorch.host.levels import calls_at_first_level, level_for
from poptorch.host.libraries import libraries_of, products_of
from poptorch.host.recomputation import dividing_passes, own_way
from poptorch.host.width import width
from poptorch.libraries.choice import MKL_ALONE, Libraries
from poptorch.program.finality import gradient_buckets
from poptorch.program.graphs import copy_of
from poptorch.program.opinfo import info_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Program, Role, has_values, type_text
from poptorch.program.tracing import tracing
from poptorch.program.update import UpdateProgram

EXCHANGE_BYTES = 4 << 20
"""Gradients of so many bytes begin their way to other processes together. Kernels end where a bucket does, and a cut
costs the fusion across it; smaller messages would gain nothing."""


@dataclass
class Build:
    """The code of one device program while it is made."""

    device: DeviceProgram
    program: Program
    """What the host computes: the device's program, the same before recomputation, or that of a group."""

    dump: Dump | None = None
    native_after: int | None = None
    cut: Cut | None = None
    libraries: Libraries = MKL_ALONE
    stages: tuple[HostStage, ...] = ()
    update: Code | None = None
    shards: tuple[Code, ...] = ()
    step: Code | None = None

    @property
    def is_grouped(self) -> bool:
        return group_size_of(self.program) > 1

    @property
    def is_alone(self) -> bool:
        """Whether one stage on one replica is everything."""
        device = self.device
        return device.plan.whole and device.loop.replicas == 1 and not device.settings.groups

    @property
    def described(self) -> tuple[StageProgram, ...]:
        """The stages of the plan, as the host computes them."""
        plan = self.device.plan
        if plan.whole:
            return (whole_stage(self.program),)
        return plan.stages if self.cut is None else tuple(self.cut.stages)

    @property
    def width(self) -> int:
        """How many of them are worth running at once."""
        device = self.device
        return width(device.plan, [s for s in self.described if device.runs(s)], device.loop.replicas)

    def listing(self) -> str:
        """What there is so far: host programs, or else the program that they will compute."""
        parts = [] if self.step is None else [str(self.step)]
        parts += [f"{stage.description.label}: {stage.code}" for stage in self.stages]
        parts += [str(code) for code in (*([] if self.update is None else [self.update]), *self.shards)]
        return "\n\n".join(parts) or str(self.program)


@dataclass(frozen=True)
class HostStep:
    """One decision about the host; ``apply`` says what it did."""

    name: str
    apply: Callable[[Build], str]
    reason: str


def choose_level(build: Build) -> str:
    """When to change from interpreted to native code."""
    loop, program = build.device.loop, build.device.program
    micro_batches = loop.device_iterations * loop.micro_batches_per_update
    build.native_after = calls_at_first_level(level_for(program), program, micro_batches)
    return "interpreted" if build.native_after is None else f"native code after {build.native_after} calls"


def group_micro_batches(build: Build) -> str:
    """Compute several micro-batches at once, where their rows are few."""
    with tracing():
        build.program = group(build.device)
    return f"groups of {group_size_of(build.program)}" if build.is_grouped else "one micro-batch at a time"


def divide(build: Build) -> str:
    """Cut the program into the stages of the plan, with the recomputation that pays on a host."""
    device, plan = build.device, build.device.plan
    own = own_way(device)
    if not build.is_grouped:
        if own is None:
            build.program = device.program
            return "as on IPUs"
        build.program, _ = copy_of(device.undivided)
    division = Division.WHOLE if plan.whole else plan.ordering.division
    context = Context(PassSettings(division=division, recomputation=device.recomputation))
    lower(build.program, context, dividing_passes(own), [] if build.dump is None else [build.dump])
    if not plan.whole:
        if tuple(context.divided.parts) != plan.parts:  # nothing is left of a part where micro-batches are stacked
            build.program = device.program
            return "as on IPUs, one micro-batch at a time"
        build.cut = split(build.program, context.divided, context.carried)
    return f"recompute {context.summaries['recompute']}"


def choose_libraries(build: Build) -> str:
    """Which library multiplies matrices: for each product the one that is faster on this machine."""
    threads = CoreShare.of(build.width).threads
    build.libraries = libraries_of(build.program, threads)
    return build.libraries.summary(products_of(build.program))


def generate_stages(build: Build) -> str:
    """Straight-line Python for each stage."""
    device = build.device
    accumulates = device.settings.training and device.loop.micro_batches_per_update > 1
    described = build.described
    buckets = exchanged_buckets(device, build.program)
    build.stages = tuple(
        HostStage(stage, _generated(stage.program, buckets, accumulates, build.libraries), buckets)
        if device.runs(stage)
        else HostStage(stage, ELSEWHERE)
        for stage in described
    )
    own = sum(device.runs(stage) for stage in described)
    made = f"{own} stages" if own == len(described) else f"{own} of {len(described)} stages"
    return made + (f", gradients in {len(buckets)} buckets" if buckets else "")


def _generated(program: Program, buckets: Sequence[Sequence[str]], accumulates: bool, libraries: Libraries) -> Code:
    def made() -> Code:
        positions = bucket_positions(program, buckets)
        factored, products = in_factors(program) if accumulates else (program, NO_PRODUCTS)
        return generate(factored, buckets=positions, products=products, libraries=libraries)

    return Code.when_needed(made)


def exchanged_buckets(device: DeviceProgram, program: Program) -> tuple[tuple[str, ...], ...]:
    """The gradients that go to other processes while back-propagation goes on; none where they go all at once.

    The stages of a pipeline are not cut: each ends at a time of its own.
    """
    loop = device.loop
    if device.update is None or not device.plan.whole or loop.replicas_of_job == loop.replicas:
        return ()
    buckets = gradient_buckets(program, EXCHANGE_BYTES)
    return buckets if len(buckets) > 1 else ()


def bucket_positions(program: Program, buckets: Sequence[Sequence[str]]) -> list[list[int]]:
    """Where the gradients of each bucket are among the outputs of a program."""
    at = dict(zip(program.gradients, program.positions_of(OutputKind.GRADIENT), strict=True))
    return [[at[name] for name in bucket] for bucket in buckets]


def generate_update(build: Build) -> str:
    """Straight-line Python for the update, or for its shards."""
    update = build.device.local_update
    if update is None:
        return "none"
    build.update = _of_update(update)
    build.shards = tuple(_of_update(shard.update) for shard in update.shards)
    return f"{len(build.shards)} shards" if build.shards else "whole"


def _of_update(update: UpdateProgram) -> Code:
    return Code.when_needed(lambda: generate_flat(update.graph_module, "update", update.numerics))


def join_update(build: Build) -> str:
    """Update weights in the middle of back-propagation: gradients are dropped earlier."""
    device = build.device
    update = device.update
    if update is None or not updates_every_time(device, build.is_alone) or build.native_after == 0:
        return "apart"
    build.step = generate_step(device.program, update.graph_module.graph, update.names, build.libraries)
    return "apart" if build.step is None else "in the backward pass"


HOST_STEPS: tuple[HostStep, ...] = (
    HostStep("level", choose_level, "the same program changes to native code at the same call every time"),
    HostStep("group micro-batches", group_micro_batches, "a host multiplies few rows at half the speed of many"),
    HostStep("divide", divide, "after grouping: recomputation copies operations, which would be grouped twice"),
    HostStep("matrix products", choose_libraries, "which library is faster depends on the machine, and is known of it"),
    HostStep("stage code", generate_stages, "each stage runs on its own"),
    HostStep("update code", generate_update, "after the gradients of all micro-batches"),
    HostStep("update in backward", join_update, "last: it needs the programs of both"),
)


def build_host(device: DeviceProgram, dump: Dump | None = None) -> HostCode:
    """Interpreted code for a device program; ``native_after`` says when native code is to replace it.

    ``dump`` takes what there is after each step: first the program, then the host programs that compute it.
    """
    _check_values_exist(device.undivided)
    build = Build(device, device.undivided, dump)
    log = []
    for step in HOST_STEPS:
        log.append(f"{step.name}: {step.apply(build)}")
        logger.debug("Host %s", log[-1])
        if dump is not None:
            dump.write(step.name, build.listing())
    plan = device.plan
    return HostCode(
        program=build.program,
        loop=HostLoop.of(device.loop, group_size_of(build.program)),
        stages=build.stages,
        edges=plan.edges if build.cut is None else tuple(build.cut.edges),
        carried=plan.carried if build.cut is None else tuple(build.cut.carried),
        width=build.width,
        alone=build.is_alone,
        update=build.update,
        shards=build.shards,
        step=build.step,
        native_after=build.native_after,
        libraries=build.libraries,
        log=tuple(log),
    )


def _check_values_exist(program: Program) -> None:
    """Refuse to run what was compiled for its shapes only."""
    for node, port in program.placeholders():
        if port.role is Role.CONSTANT and not has_values(program.constants[port.name]):
            source = next((info_of(user).source for user in node.users), None)
            raise createPoptorchError(
                f"The model uses a tensor of type {type_text(port.dtype, port.shape)} that has no values, because it "
                "is on the meta device or a fake tensor, and is neither a parameter nor a buffer"
                f"{'' if source is None else f', at {source}'}. Give it values before the model is compiled."
            )


def updates_every_time(device: DeviceProgram, alone: bool) -> bool:
    """Whether each micro-batch is followed by an update of whole weights with exactly its gradients."""
    update = device.update
    if update is None or not alone or device.loop.all_micro_batches_per_update > 1:
        return False
    return not update.shards and not update.accumulators and not device.watch.elements
