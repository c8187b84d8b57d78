"""How graphs are put into batches of fixed size, and what happens to those that are too large."""

from __future__ import annotations

import enum


class FixedSizeStrategy(enum.Enum):
    """Which graphs share a micro-batch."""

    PadToMax = 0
    """Always the same number of real graphs."""

    StreamPack = 1
    """As many as fit."""


class OverSizeStrategy(enum.Enum):
    """What happens where nodes or edges are more than there is room for."""

    Error = 0
    Skip = 1
    TrimNodes = 2
    TrimEdges = 3
    TrimNodesAndEdges = 4

    @property
    def trims_nodes(self) -> bool:
        """Whether nodes are left out."""
        return self in (OverSizeStrategy.TrimNodes, OverSizeStrategy.TrimNodesAndEdges)

    @property
    def trims_edges(self) -> bool:
        """Whether edges are left out."""
        return self in (OverSizeStrategy.TrimEdges, OverSizeStrategy.TrimNodesAndEdges)
