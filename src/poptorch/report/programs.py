"""Programs of a report as objects: a tree that visitors walk through."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from poptorch.report.objects import Compilation, LoweredVariable, Operation


class ProgramType(enum.Enum):
    """What a program does. ``Program.Type`` is the same."""

    Sequence = "Sequence"
    Repeat = "Repeat"
    RepeatWhileTrue = "RepeatWhileTrue"
    If = "If"
    Switch = "Switch"
    Call = "Call"
    OnTileExecute = "OnTileExecute"
    DoExchange = "DoExchange"
    GlobalExchange = "GlobalExchange"
    StreamCopyBegin = "StreamCopyBegin"
    StreamCopyMid = "StreamCopyMid"
    StreamCopyEnd = "StreamCopyEnd"
    Sync = "Sync"
    WriteUndef = "WriteUndef"


@dataclass(frozen=True)
class VertexType:
    """A family of vertices."""

    name: str
    size: int
    """Bytes of the state of one vertex."""


@dataclass(frozen=True)
class Vertex:
    """The vertices of one type in a compute set."""

    type: VertexType
    count: int
    codeBytes: int
    """Of the code, on each tile that has it."""

    _first: int
    _tiles: int
    _all: int

    @property
    def countByTile(self) -> list[int]:
        """How many of them each tile has, if they are spread evenly over the tiles that compute."""
        counts = np.zeros(self._all, dtype=np.int64)
        each, more = divmod(self.count, max(1, self._tiles))
        counts[self._first : self._first + self._tiles] = each
        counts[self._first : self._first + more] += 1
        return [int(count) for count in counts]


@dataclass(frozen=True)
class ComputeSet:
    """What the tiles compute in one step."""

    name: str
    vertices: Sequence[Vertex]


class Program:
    """One program: a step of an operation, or what holds others."""

    Type = ProgramType

    def __init__(self, compilation: Compilation, index: int) -> None:
        self._compilation = compilation
        self.index = index
        self.type = ProgramType(str(self._value("type")))
        self.name = str(self._value("name"))
        self.repeatCount = int(self._value("repeat"))

    def __repr__(self) -> str:
        return f"<{self.type.name} {self.name!r}>"

    def _value(self, column: str) -> Any:
        return self._compilation.profile.tables["programs"][column][self.index]

    @property
    def ipu(self) -> int | None:
        """The IPU that runs it, counted within a replica; ``None`` if all of them do."""
        place = int(self._value("ipu"))
        return None if place < 0 else place

    @property
    def parent(self) -> Program | None:
        """The program that holds it."""
        parent = int(self._value("parent"))
        return None if parent < 0 else self._compilation.programs[parent]

    @property
    def children(self) -> list[Program]:
        """The programs that it holds, in their order."""
        return [self._compilation.programs[child] for child in self._compilation.children_of(self.index)]

    @property
    def operation(self) -> Operation | None:
        """The operation of the model that it is a part of."""
        row = int(self._value("operation"))
        return None if row < 0 else self._compilation.operations[row]

    @property
    def cycles(self) -> float:
        """From the end of the step before to the end of this one, synchronisation included."""
        return float(self._value("cycles"))

    @property
    def exchangeBytes(self) -> float:
        """What all tiles receive."""
        return float(self._value("exchange_bytes"))

    @cached_property
    def computeset(self) -> ComputeSet:
        """Its vertices."""
        first, tiles, everything = self._tiles
        vertices = self._compilation.profile.tables["vertices"]
        return ComputeSet(self.name, [
            Vertex(
                VertexType(str(vertices["type"][row]), int(vertices["state_bytes"][row])),
                int(vertices["total"][row]), int(vertices["code_bytes"][row]),
                first, min(tiles, int(vertices["total"][row])), everything,
            )
            for row in self._compilation.vertices_of(self.index)
        ])  # fmt: skip

    @property
    def estimatedCyclesByTile(self) -> list[float]:
        """Cycles of each tile. The model knows the slowest tile and the sum: the others share the rest evenly."""
        first, tiles, everything = self._tiles
        cycles = np.zeros(everything)
        if tiles and self.type is ProgramType.OnTileExecute:
            slowest = float(self._value("tile_cycles"))
            cycles[first : first + tiles] = self.share_of_others()
            cycles[first] = slowest
        elif tiles:
            cycles[first : first + tiles] = self.cycles
        return [float(number) for number in cycles]

    def share_of_others(self) -> float:
        """The cycles of each tile but the slowest."""
        tiles, slowest = int(self._value("tiles")), float(self._value("tile_cycles"))
        rest = float(self._value("total_cycles")) - slowest
        return min(slowest, max(0.0, rest / (tiles - 1))) if tiles > 1 else slowest

    @property
    def codeBytesByTile(self) -> list[float]:
        """Code of its vertices or of its exchange."""
        return self._by_tile("code_bytes")

    @property
    def controlCodeByTile(self) -> list[float]:
        """Code that starts it."""
        return self._by_tile("control_bytes")

    def _by_tile(self, column: str) -> list[float]:
        first, tiles, everything = self._tiles
        found = np.zeros(everything)
        found[first : first + tiles] = float(self._value(column))
        return [float(number) for number in found]

    @property
    def _tiles(self) -> tuple[int, int, int]:
        """The first tile that takes part, how many there are, and the number of all tiles."""
        target = self._compilation.target
        first = max(0, int(self._value("ipu"))) * target.tilesPerIpu
        return first, min(int(self._value("tiles")), target.tilesPerIpu), target.numTiles

    @property
    def vars(self) -> list[LoweredVariable]:
        """What is in memory while its operation runs, without what is always there."""
        operation = self.operation
        if operation is None or operation.livenessStep is None:
            return []
        return operation.livenessStep.notAlwaysLiveVariables

    def accept(self, visitor: ProgramVisitor) -> None:
        """Let a visitor look at it: calls the method of its type."""
        getattr(visitor, f"visit{self.type.name}")(self)


class ProgramVisitor:
    """Looks at programs: override the methods of the types that matter.

    Methods of programs that hold others visit these; those of the others do nothing.
    """

    def visitChildren(self, program: Program) -> None:
        """Visit all that a program holds."""
        for child in program.children:
            child.accept(self)

    def visitSequence(self, program: Program) -> None:
        """One program after the other."""
        self.visitChildren(program)

    def visitRepeat(self, program: Program) -> None:
        """A loop."""
        self.visitChildren(program)

    def visitRepeatWhileTrue(self, program: Program) -> None:
        """A loop with a condition."""
        self.visitChildren(program)

    def visitIf(self, program: Program) -> None:
        """A choice of two."""
        self.visitChildren(program)

    def visitSwitch(self, program: Program) -> None:
        """A choice of several."""
        self.visitChildren(program)

    def visitCall(self, program: Program) -> None:
        """A program that is shared."""
        self.visitChildren(program)

    def visitOnTileExecute(self, program: Program) -> None:
        """Tiles compute."""

    def visitDoExchange(self, program: Program) -> None:
        """Tiles of an IPU exchange data."""

    def visitGlobalExchange(self, program: Program) -> None:
        """IPUs exchange data."""

    def visitStreamCopyBegin(self, program: Program) -> None:
        """A copy from or to the host begins."""

    def visitStreamCopyMid(self, program: Program) -> None:
        """Data moves between host, or streaming memory, and IPU."""

    def visitStreamCopyEnd(self, program: Program) -> None:
        """A copy from or to the host ends."""

    def visitSync(self, program: Program) -> None:
        """Tiles or IPUs wait for each other."""

    def visitWriteUndef(self, program: Program) -> None:
        """A variable begins to live."""


__all__ = ["ComputeSet", "Program", "ProgramType", "ProgramVisitor", "Vertex", "VertexType"]
