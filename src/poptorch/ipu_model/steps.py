"""What an operation is on an IPU: a list of steps, each an exchange between tiles and then a computation on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from poptorch.ipu_model.architecture import Architecture


@dataclass(frozen=True)
class Exchange:
    """One exchange phase between the tiles of an IPU."""

    tile_bytes: float
    """What the busiest tile sends or receives; data that pairs of tiles receive together count half."""

    total_bytes: float = 0.0
    """What all tiles receive."""

    fragments: int = 1
    """Contiguous pieces that the busiest tile receives: they decide about the size of the exchange code."""

    def cycles(self, chip: Architecture) -> float:
        """How long it takes, without the synchronisation before it."""
        return chip.exchange_skew + -(-self.tile_bytes // chip.exchange_bytes)


@dataclass(frozen=True)
class Vertices:
    """Equal pieces of computation: calls of one codelet."""

    codelet: str
    """The family of code, such as ``"conv1x1"`` or ``"binary"``: what decides about code size."""

    per_tile: int = 1
    """On the busiest tile."""

    total: int = 1
    """On all tiles."""

    state_bytes: int = 24
    """Of one vertex, fields and pointers included."""


@dataclass(frozen=True)
class CostStep:
    """A bulk-synchronous step: exchange, synchronise, compute. It may run several times in a row."""

    name: str
    cycles: float = 0.0
    """Computation of the slowest tile."""

    total_cycles: float = 0.0
    """Computation of all tiles together."""

    exchange: Exchange | None = None
    vertices: tuple[Vertices, ...] = ()
    tiles: int = 1
    """How many tiles compute."""

    repeat: int = 1
    """How many times it runs, in a loop: its code exists once."""

    temporary_bytes: float = 0.0
    """What the busiest tile needs beside the operands and results of the operation."""

    def duration(self, chip: Architecture) -> float:
        """Cycles from the end of the step before to the end of this one."""
        exchange = 0.0 if self.exchange is None else self.exchange.cycles(chip) + chip.sync_cycles
        compute = self.cycles + chip.sync_cycles if self.cycles else 0.0
        return self.repeat * (exchange + compute)


@dataclass(frozen=True)
class OpCost:
    """What one operation costs on one IPU."""

    steps: tuple[CostStep, ...] = ()
    flops: float = 0.0
    """Useful floating-point operations; a multiplication with an addition counts two."""

    covered: bool = True
    """Whether a rule of its own says so, and not the fallback."""

    weight_tile_bytes: float = field(default=0.0)
    """For operations that decide where their weights live: bytes of these on the busiest tile; 0: spread evenly."""

    def cycles(self, chip: Architecture) -> float:
        """Of all its steps."""
        return sum(step.duration(chip) for step in self.steps)

    @property
    def temporary_bytes(self) -> float:
        """The most that the busiest tile needs beside operands and results."""
        return max((step.temporary_bytes for step in self.steps), default=0.0)


def spread(elements: int, element_bytes: int, tiles: int) -> int:
    """Elements on the busiest tile of a tensor that is mapped linearly: whole 64-bit words, at least 128 bytes.

    >>> spread(1472 * 100, 2, 1472), spread(10, 4, 1472), spread(1024, 2, 1472)
    (100, 10, 64)
    """
    grain = max(1, 8 // element_bytes)
    balanced = -(-elements // tiles)
    share = max(-(-balanced // grain) * grain, 128 // element_bytes)
    return min(elements, share)


__all__ = ["Exchange", "OpCost", "CostStep", "Vertices", "spread"]
