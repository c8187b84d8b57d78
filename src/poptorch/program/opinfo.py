"""What is known about one operation beside its arguments: where it runs, and where it comes from."""

from __future__ import annotations

import dataclasses
import enum
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

from poptorch.ambient import Placement

_KEY = "poptorch"

STREAMS = 1 << 24
"""More random streams than a program has operations."""

FIRST_ROUNDING_STREAM = 1 << 32
"""Random streams of stochastic roundings start here, far from those of the operations themselves."""


class Sweep(enum.Enum):
    """The part of a training step that an operation belongs to."""

    FORWARD = "fwd"
    BACKWARD = "bwd"
    UPDATE = "upd"


@dataclass(frozen=True)
class SourceLocation:
    """A file and a line in it."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class OpInfo:
    """The annotations of one operation."""

    placement: Placement = field(default_factory=Placement)
    sweep: Sweep = Sweep.FORWARD
    scope: str = ""
    source: SourceLocation | None = None
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    random: int | None = None
    """Which random stream the operation draws from; operations with equal numbers draw equal values. In programs for
    several micro-batches at once, :data:`STREAMS` times the number of the one that draws comes on top."""

    recomputed: bool = False
    """Whether this is a second execution of a forward operation, for the backward pass."""

    partials: str | None = None
    """Type of partial sums (``"half"`` or ``"float"``) that the user chose for a product, for the IPU Model."""

    available_memory: float | None = None
    """Share of tile memory that the operation may use temporarily, if the user set it."""

    cycles: float | None = None
    """What the author of a custom operator says that it costs."""

    def but(self, **changes: object) -> OpInfo:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def info_of(node: fx.Node) -> OpInfo:
    """The node's annotations; an empty set for nodes without any."""
    info = node.meta.get(_KEY)
    return info if isinstance(info, OpInfo) else OpInfo()


def set_info(node: fx.Node, info: OpInfo | None) -> None:
    """Replace the node's annotations; ``None`` says that it is in no place of the user's.

    To take one value of several draws no random numbers, whatever the operation did that made them.
    """
    if info is not None and info.random is not None and node.target is operator.getitem:
        info = info.but(random=None)
    node.meta[_KEY] = info


def has_info(node: fx.Node) -> bool:
    """Whether the node has annotations."""
    return node.meta.get(_KEY) is not None


def is_annotated(node: fx.Node) -> bool:
    """Whether something was said about the node, be it that it has no annotations."""
    return _KEY in node.meta
