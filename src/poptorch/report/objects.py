"""What a report says about a compiled model, as objects with the names of Poplar's own library."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from poptorch.errors import createPoptorchError
from poptorch.report.building import ALWAYS
from poptorch.report.categories import COMING, DATA_TYPES, GAPS
from poptorch.report.files import Profile, Table, rows
from poptorch.report.programs import Program, VertexType


class Architecture(enum.Enum):
    """Kinds of IPUs. ``IPU.Architecture`` is the same."""

    Ipu1 = "mk1"
    Ipu2 = "mk2"
    Ipu21 = "c600"


class IPU:
    """A place for the names of architectures."""

    Architecture = Architecture


@dataclass(frozen=True)
class Target:
    """The IPUs that a model is for; tiles and memory are those of one replica."""

    architecture: Architecture
    numIPUs: int
    numReplicas: int
    ipusPerReplica: int
    numTiles: int
    tilesPerIpu: int
    bytesPerTile: int
    totalMemory: int
    clockFrequencyInHz: float

    @classmethod
    def of(cls, figures: Mapping[str, Any]) -> Target:
        """From the document of a profile."""
        names = {a.value: a for a in Architecture}
        known = {key: figures[key] for key in cls.__dataclass_fields__ if key != "architecture"}
        return cls(names.get(figures["architecture"], Architecture.Ipu2), **known)


@dataclass(frozen=True)
class Graph:
    """Sizes of the compiled graph."""

    numVertices: int
    numVars: int
    numComputeSets: int
    numExchanges: int
    numOperations: int


@dataclass(frozen=True)
class MemoryTotal:
    """All bytes of a tile, with and without what is lost between tensors."""

    includingGaps: int
    excludingGaps: int


@dataclass(frozen=True)
class MemoryCategory:
    """Bytes of one kind on a tile."""

    total: int
    modelled: bool
    """Whether the IPU Model knows this kind; its total is 0 otherwise."""


class MemoryCategories:
    """The categories of a tile, each as an attribute."""

    def __init__(self, found: Mapping[str, MemoryCategory]) -> None:
        self._found = found

    def __getattr__(self, name: str) -> MemoryCategory:
        if name.startswith("_") or name not in self._found:
            raise AttributeError(f"There is no memory category {name!r}; there are {', '.join(self._found)}")
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)


@dataclass(frozen=True)
class VertexMemory:
    """The code of one type of vertices on a tile."""

    type: VertexType
    codeBytes: int


class TileMemory:
    """The memory of one tile at the fullest moment of its IPU."""

    def __init__(self, compilation: Compilation, tile: int) -> None:
        self._compilation = compilation
        self._tile = tile

    def _bytes(self, column: str) -> float:
        table = self._compilation.profile.tables["tiles"]
        return float(table[column][self._tile]) if column in table else 0.0

    @property
    def total(self) -> MemoryTotal:
        """All of it."""
        everything = sum(self._bytes(column) for column in self._compilation.profile.tables["tiles"])
        return MemoryTotal(round(everything), round(everything - self._bytes(GAPS)))

    @property
    def alwaysLiveBytes(self) -> int:
        """Code, state, weights: what never goes away."""
        return self.total.excludingGaps - round(self._bytes(COMING))

    @property
    def notAlwaysLiveBytes(self) -> int:
        """Activations and temporaries."""
        return round(self._bytes(COMING))

    @property
    def category(self) -> MemoryCategories:
        """By what the bytes are for."""
        return MemoryCategories(
            {
                kind.attribute: MemoryCategory(round(sum(map(self._bytes, kind.columns))), bool(kind.columns))
                for kind in DATA_TYPES
            }
        )

    @property
    def vertices(self) -> list[VertexMemory]:
        """The types of vertices whose code is on the tile."""
        place, tile = divmod(self._tile, self._compilation.target.tilesPerIpu)
        kinds = self._compilation.codelets[place]
        return [VertexMemory(kind, code) for kind, code, tiles in kinds if tile < tiles]


@dataclass(frozen=True)
class Tile:
    """One tile; tiles are counted over all IPUs of a replica."""

    id: int
    ipu: int
    memory: TileMemory


@dataclass(frozen=True)
class EquivalenceClass:
    """Variables that live at the same time."""

    id: int
    steps: list[LivenessStep]


class LoweredVariable:
    """A tensor on tiles; ``tileId`` is the tile that was asked for, or its first one."""

    def __init__(self, compilation: Compilation, row: int, tile: int | None = None) -> None:
        self._compilation = compilation
        table = compilation.variables
        value = {name: column[row] for name, column in table.items()}
        self.id = row
        self.name, self.category, self.layer = str(value["name"]), str(value["category"]), str(value["layer"])
        first = int(value["ipu"]) * compilation.target.tilesPerIpu + int(value["first_tile"])
        self.ipu, self.tileId = int(value["ipu"]), first if tile is None else tile
        self.bytes = self.size = round(float(value["bytes"] if tile is None else value["tile_bytes"]))
        self.alwaysLive = int(value["first_step"]) == ALWAYS
        self._steps = int(value["first_step"]), int(value["last_step"])

    def __repr__(self) -> str:
        return f"<{self.name}: {self.bytes} bytes>"

    @property
    def equivalenceClass(self) -> EquivalenceClass:
        """The steps in which it is in memory."""
        steps = self._compilation.livenessProgramSteps
        if self.alwaysLive:
            return EquivalenceClass(self.id, [step for step in steps if step.ipu == self.ipu])
        return EquivalenceClass(self.id, steps[self._steps[0] : self._steps[1] + 1])


class LoweredVariables:
    """All tensors on tiles."""

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation

    @property
    def allBriefVars(self) -> list[LoweredVariable]:
        """Each tensor once, with its bytes on all tiles."""
        table = self._compilation.variables
        return [LoweredVariable(self._compilation, row) for row in range(rows(table))]

    def forTile(self, tile: int) -> list[LoweredVariable]:
        """What is on a tile at some time, with the bytes there."""
        found = np.flatnonzero(self._compilation.lies_on(tile))
        return [LoweredVariable(self._compilation, int(row), tile) for row in found]


class LivenessStep:
    """An operation, and what is in memory while it runs."""

    def __init__(self, compilation: Compilation, index: int) -> None:
        self._compilation = compilation
        self.index = index
        table = compilation.profile.tables["liveness"]
        self.ipu, self.name = int(table["ipu"][index]), str(table["name"][index])
        self._bytes = float(table["bytes"][index])
        self._operation = int(table["operation"][index])

    def __repr__(self) -> str:
        return f"<step {self.index}: {self.name}>"

    @property
    def program(self) -> Program | None:
        """The programs of the operation, in one."""
        if self._operation < 0:
            return None
        return self._compilation.operations[self._operation].programs()[0]

    def notAlwaysLiveMemoryForIpu(self, ipu: int | None = None) -> int:
        """Bytes on all tiles of an IPU; a step is a step of one IPU, which is meant if none is named."""
        return round(self._bytes) if ipu is None or ipu == self.ipu else 0

    def notAlwaysLiveMemoryForTile(self, tile: int) -> int:
        """Bytes on one tile."""
        if tile // self._compilation.target.tilesPerIpu != self.ipu:
            return 0
        here = self._live & self._compilation.lies_on(tile)
        table = self._compilation.variables
        return round(float(table["tile_bytes"][here].sum()))

    @property
    def notAlwaysLiveVariables(self) -> list[LoweredVariable]:
        """The tensors, and the temporary needs of the operation; the largest first. Together they are all bytes."""
        found = [LoweredVariable(self._compilation, int(row)) for row in np.flatnonzero(self._live)]
        return sorted(found, key=lambda variable: -variable.bytes)

    @property
    def _live(self) -> np.ndarray[Any, Any]:
        table = self._compilation.variables
        return (table["first_step"] <= self.index) & (self.index <= table["last_step"]) & (table["first_step"] >= 0)


@dataclass(frozen=True)
class DebugContext:
    """Where an operation comes from."""

    json: str


class Operation:
    """An operation of the model."""

    def __init__(self, compilation: Compilation, row: int) -> None:
        self._compilation = compilation
        self._row = row
        table = compilation.profile.tables["operations"]
        self._value = {name: column[row] for name, column in table.items()}
        self.name, self.type = str(self._value["name"]), str(self._value["operator"])
        self.layer, self.stage = str(self._value["layer"]), str(self._value["stage"])
        self.source = str(self._value.get("source", ""))
        """File and line of the user's code."""

        self.ipu = int(self._value["ipu"])
        self.cycles, self.flops = float(self._value.get("cycles", 0.0)), float(self._value.get("flops", 0.0))
        self.bytes = float(self._value["bytes"])

    def __repr__(self) -> str:
        return f"<{self.name}: {self.type}>"

    def programs(self) -> list[Program]:
        """All of its programs; the first one holds the others."""
        first, last = int(self._value["first_program"]), int(self._value["last_program"])
        return self._compilation.programs[first : last + 1]

    @property
    def livenessStep(self) -> LivenessStep | None:
        """Its step of the liveness analysis; updates of weights have none."""
        step = int(self._value["liveness_step"])
        return None if step < 0 else self._compilation.livenessProgramSteps[step]

    @property
    def firstStepIndex(self) -> int:
        """Its first liveness step; -1 if it has none."""
        return int(self._value["liveness_step"])

    lastStepIndex = firstStepIndex

    @property
    def debugContext(self) -> DebugContext:
        """Name, layer, operator and source line as JSON."""
        about = {"name": self.name, "layer": self.layer, "operator": self.type, "location": self.source}
        return DebugContext(json.dumps({**about, "stage": self.stage}))


class Compilation:
    """The compiled model."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.target = Target.of(profile.document["target"])
        self.graph = Graph(**profile.document["graph"])

    @cached_property
    def tiles(self) -> list[Tile]:
        """All tiles of a replica."""
        per_ipu = self.target.tilesPerIpu
        return [Tile(tile, tile // per_ipu, TileMemory(self, tile)) for tile in range(self.target.numTiles)]

    @cached_property
    def programs(self) -> list[Program]:
        """All programs; each comes before those that it holds, and the first one holds all."""
        return [Program(self, index) for index in range(rows(self.profile.tables["programs"]))]

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations of one micro-batch on all IPUs, then those of the weight update."""
        return [Operation(self, row) for row in range(rows(self.profile.tables["operations"]))]

    @cached_property
    def livenessProgramSteps(self) -> list[LivenessStep]:
        """The operations of each IPU, one IPU after the other."""
        return [LivenessStep(self, index) for index in range(rows(self.profile.tables["liveness"]))]

    @property
    def loweredVariables(self) -> LoweredVariables:
        """Tensors on tiles; an error if ``autoReport.outputLoweredVars`` was off."""
        return LoweredVariables(self)

    def alwaysLiveVariablesForTile(self, tile: int) -> list[LoweredVariable]:
        """The tensors on a tile that never go away, with the bytes there; the largest first."""
        found = [variable for variable in self.loweredVariables.forTile(tile) if variable.alwaysLive]
        return sorted(found, key=lambda variable: -variable.bytes)

    # -- for the other objects -------------------------------------------------------------------------------------

    @property
    def variables(self) -> Table:
        """The table of tensors on tiles."""
        if "variables" not in self.profile.tables:
            raise createPoptorchError(
                "This report has no variables, because the engine option 'autoReport.outputLoweredVars' was false."
            )
        return self.profile.tables["variables"]

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for index, parent in enumerate(self.profile.tables["programs"]["parent"]):
            found.setdefault(int(parent), []).append(index)
        return found

    def children_of(self, program: int) -> list[int]:
        """The programs that one holds."""
        return self._children.get(program, [])

    @cached_property
    def _vertices(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for row, program in enumerate(self.profile.tables["vertices"]["program"]):
            found.setdefault(int(program), []).append(row)
        return found

    def vertices_of(self, program: int) -> list[int]:
        """The rows of a program's vertices."""
        return self._vertices.get(program, [])

    def lies_on(self, tile: int) -> np.ndarray[Any, Any]:
        """Which variables have bytes on a tile; after the last tile of an IPU comes its first one."""
        table = self.variables
        place, on_ipu = divmod(tile, self.target.tilesPerIpu)
        computing = self.target.tilesPerIpu - int(self.profile.document["target"]["ioTiles"])
        distance = (on_ipu - table["first_tile"]) % computing
        return (table["ipu"] == place) & (distance < table["tiles"]) & (on_ipu < computing)

    @cached_property
    def codelets(self) -> list[list[tuple[VertexType, int, int]]]:
        """For each IPU its types of vertices, the bytes of their code, and on how many tiles that is."""
        programs, vertices = self.profile.tables["programs"], self.profile.tables["vertices"]
        found: list[dict[str, tuple[VertexType, int, int]]] = [{} for _ in range(self.target.ipusPerReplica)]
        for row, program in enumerate(vertices["program"]):
            kinds, name = found[int(programs["ipu"][program])], str(vertices["type"][row])
            tiles = max(1, min(int(programs["tiles"][program]), int(vertices["total"][row])))
            if name not in kinds or kinds[name][2] < tiles:
                kind = VertexType(name, int(vertices["state_bytes"][row]))
                kinds[name] = (kind, int(vertices["code_bytes"][row]), tiles)
        return [list(kinds.values()) for kinds in found]


__all__ = ["IPU", "Architecture", "Compilation", "Graph", "LivenessStep", "Operation", "Target", "Tile"]
