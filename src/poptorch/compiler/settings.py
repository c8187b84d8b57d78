"""What the options of a model say about its program, in the compiler's own terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from poptorch.compiler.memory import Category, Location
from poptorch.compiler.passes.context import PassSettings
from poptorch.compiler.passes.recompute import Recomputation
from poptorch.compiler.plan import Ordering
from poptorch.placement import ExecutionStrategy
from poptorch.program.anchors import Anchor
from poptorch.program.numerics import Numerics
from poptorch.program.replica_groups import ReplicaGrouping


@dataclass(frozen=True)
class BackendSettings:
    """What options of the backend say to the IPU Model; ``None`` where they say nothing."""

    product_partials: str | None = None
    """Type of the partial sums of matrix products, by the name that options have for it."""

    convolution_partials: str | None = None
    product_proportion: float | None = None
    """Share of tile memory that a product may use temporarily."""

    convolution_proportion: float | None = None
    outlining: bool = True
    """Whether equal operations of an IPU share their code."""


@dataclass(frozen=True)
class Machine:
    """What the options say about the IPUs that run the program."""

    hardware: bool = True
    """Whether they are taken for real ones: neither the IPU Model nor an offline target."""

    rounds_up: bool = False
    """Whether a number of IPUs that no machine gives is rounded up to one that it does."""

    blocks: int = 1
    """How many processes share the IPUs of a replica."""

    own_block: int = 0
    """The block of this process."""


@dataclass(frozen=True)
class Settings:
    """What the options say about the program."""

    training: bool
    numerics: Numerics
    strategy: ExecutionStrategy
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
    machine: Machine = field(default_factory=Machine, repr=False)
    backend: BackendSettings = field(default_factory=BackendSettings, repr=False)
    memory_proportions: Mapping[int, float] = field(default_factory=dict)
    """Share of tile memory that products on an IPU may use temporarily, by its number, for the IPU Model."""

    io_tiles: int = 0
    """Tiles of each IPU that are set aside for input and output, for the IPU Model."""

    broadcasts_buffers: bool = True
    """Whether replicas are to share buffers."""

    pipelining: bool | None = None
    """What the user forced, against what the strategy implies; ``None``: nothing."""


@dataclass(frozen=True)
class ProgramDivision:
    """How the program is divided, once its placements are known."""

    ordering: Ordering
    recomputation: Recomputation
    ipus_per_replica: int


__all__ = ["BackendSettings", "ProgramDivision", "Machine", "Settings"]
