"""The compiled model as data: the micro-batch program, the update programs and the loop around them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from poptorch.compiler.memory import Category, Location, MemoryMap
from poptorch.compiler.passes.precision import GradientWatch
from poptorch.compiler.plan import Plan
from poptorch.compiler.sharding import UpdateShard
from poptorch.compiler.update import UpdateProgram
from poptorch.enums import OutputMode
from poptorch.host.interpret.code import Generated
from poptorch.host.store.code_store import Pieces
from poptorch.program.loop import Loop
from poptorch.program.program import Program
from poptorch.program.replica_groups import ReplicaGrouping


@dataclass(frozen=True)
class Anchor:
    """An inner value that is returned by name after each call."""

    short_name: str
    long_name: str
    mode: OutputMode
    period: int
    parameter: str | None = None
    """Set when the value is a parameter after its update rather than a value of the micro-batch."""


@dataclass
class Executable:
    """Everything the engine needs. Holds no reference to the user's model, options or optimizer."""

    program: Program
    micro_batch: Generated
    """The code of ``host_program``."""

    loop: Loop
    host_results: dict[int, torch.Tensor]
    """Results that are constant, by position."""

    host_program: Program = None  # type: ignore[assignment]
    """What runs here: the program itself, or that of several micro-batches."""

    update: UpdateProgram | None = None
    accumulator_types: dict[str, torch.dtype] = field(default_factory=dict)
    """Element type of each parameter's gradient accumulator, where it differs from the gradient's."""

    anchors: list[Anchor] = field(default_factory=list)
    running_mean: bool = False
    """Whether gradients are averaged as they come, instead of summed."""

    private_buffers: bool = False
    """Whether each replica keeps buffers of its own."""

    synthetic_data: int = 0
    native_after: int | None = None
    """After how many calls the program changes from interpreted to native code; ``None``: never (again)."""

    step: Generated | None = None
    """A micro-batch and the update behind it as one piece of native code, where each is followed by one."""

    formats: dict[str, torch.memory_format] = field(default_factory=dict)
    """How the code in ``step`` wants a parameter and its optimizer state to lie in memory, where not in rows."""

    update_shards: list[UpdateShard] = field(default_factory=list)
    """The update in pieces, where replicas own shards of the optimizer's state."""

    locations: dict[Category, Location] = field(default_factory=lambda: {c: Location() for c in Category})
    memory: MemoryMap = field(default_factory=MemoryMap)
    """Which tensors are on chip, in streaming memory, in shards."""

    groups: dict[str, ReplicaGrouping] = field(default_factory=dict)
    """Parameters whose value differs between groups of replicas."""

    plan: Plan | None = None
    """How the model is divided; ``None`` when it is one piece on one replica."""

    code: Pieces = field(default_factory=Pieces, repr=False)
    """Where native code comes from, and what there is of it."""

    watch: GradientWatch = field(default_factory=GradientWatch)
    """What automatic loss scaling counts."""

    def __post_init__(self) -> None:
        if self.host_program is None:
            self.host_program = self.program

    @property
    def accumulates(self) -> bool:
        """Whether an update combines the gradients of several micro-batches."""
        return self.update is not None and self.loop.micro_batches_per_update > 1

    @property
    def updates_every_time(self) -> bool:
        """Whether each micro-batch is followed by an update of whole weights with exactly its gradients."""
        alone = self.plan is None and self.loop.micro_batches_per_update == 1 and not self.update_shards
        return alone and self.update is not None and not self.accumulator_types and not self.watch.elements

    @property
    def needs_device(self) -> bool:
        """Whether there is anything to run at all."""
        return any(True for _ in self.program.operations()) or self.update is not None
