"""Which values are in memory at once while an IPU runs its programs, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import fx

from poptorch.compiler.passes.stages import StageProgram
from poptorch.ipu_model.book import OpRecord
from poptorch.ipu_model.flow import Flow
from poptorch.ipu_model.tiles import Span, TileBytes, TileMapper, TileSum, element_bytes, tensor_bytes
from poptorch.ops.traits import traits_of
from poptorch.program.graphs import memory_root
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Role


@dataclass(frozen=True)
class LiveValue:
    """A tensor that is in memory for a part of the program."""

    name: str
    scope: str
    bytes: int
    first: int
    """The first step that it is in memory at."""

    last: int
    span: Span


@dataclass(frozen=True)
class Moment:
    """One operation in the life of an IPU's memory."""

    name: str
    scope: str
    bytes: float
    """Not always live, on all tiles, the temporary needs of the operation included."""

    temporary: float = 0.0
    """Of these, what the operation needs beside operands and results, on each of its tiles."""

    tiles: int = 0
    """On how many tiles that is."""

    source: str = ""
    """The user's line."""


@dataclass
class LiveMemory:
    """How memory that is not always in use changes over the programs of an IPU."""

    moments: list[Moment] = field(default_factory=list)
    peak: int = 0
    """The moment at which the fullest tile is fullest."""

    peak_tile: int = 0
    at_peak: TileBytes = field(default_factory=lambda: np.zeros(1))
    """Bytes on every tile at that moment, without what is always there."""

    values: list[LiveValue] = field(default_factory=list)
    temporary: float = 0.0
    """Bytes that the operation at the peak needs beside operands and results, on each of its tiles."""

    temporary_tiles: int = 0

    def live_at_peak(self) -> list[LiveValue]:
        """The tensors to blame, those with the most bytes first."""
        found = [v for v in self.values if v.first <= self.peak <= v.last]
        return sorted(found, key=lambda v: -v.bytes)


def walk(
    flow: Flow, ipu: int, costs: Mapping[fx.Node, OpRecord], always: TileBytes, *, gradients_stay: bool
) -> LiveMemory:
    """Go through the programs of an IPU in their order; ``always`` is on the tiles all the time.

    ``gradients_stay`` says whether gradients live on until the end of the program, or are used up at once.
    """
    steps, values = _Lifetimes(flow, ipu, gradients_stay=gradients_stay).found()
    mapper = TileMapper(len(always))
    live = [
        LiveValue(v.name, v.scope, v.size, v.first, v.last, mapper.linear(v.size, v.item))
        for v in values
        if v.size and v.last >= v.first
    ]
    births: dict[int, list[LiveValue]] = {}
    deaths: dict[int, list[LiveValue]] = {}
    for value in live:
        births.setdefault(value.first, []).append(value)
        deaths.setdefault(value.last, []).append(value)
    result = LiveMemory(at_peak=np.zeros(len(always)), values=live)
    now, highest = TileSum(len(always)), -1.0
    for index, node in enumerate(steps):
        for value in births.get(index, ()):
            now.add(value.span)
        record = costs.get(node)
        temporary = 0.0 if record is None else record.cost.temporary_bytes
        used = max((s.tiles for s in record.cost.steps), default=0) if record is not None and temporary else 0
        top = always + now.bytes
        if used:
            top[:used] += temporary
        scope, source = ("", "") if record is None else (record.scope, record.source)
        total = now.total + temporary * used
        result.moments.append(Moment(node.name, scope, total, temporary, used, source))
        fullest = int(top.argmax())
        if top[fullest] > highest:
            highest = float(top[fullest])
            result.peak, result.peak_tile, result.temporary = index, fullest, temporary
            result.temporary_tiles = used
            result.at_peak = top - always
        for value in deaths.get(index, ()):
            now.remove(value.span)
    return result


@dataclass
class _Life:
    name: str
    scope: str
    size: int
    item: int
    first: int
    last: int


class _Lifetimes:
    """Finds when each value of an IPU is made and when it is used for the last time."""

    def __init__(self, flow: Flow, ipu: int, *, gradients_stay: bool) -> None:
        self._flow = flow
        self._ipu = ipu
        self._stages = flow.stages_on(ipu)
        self._gradients_stay = gradients_stay
        self._steps: list[fx.Node] = []
        self._lives: dict[fx.Node, _Life] = {}
        self._edges: dict[int, fx.Node] = {}
        """The value of each edge that this IPU makes."""

        self._alias: dict[fx.Node, fx.Node] = {}

    def found(self) -> tuple[Sequence[fx.Node], list[_Life]]:
        """All operations in order, and all values."""
        starts = []
        for stage in self._stages:
            starts.append(len(self._steps))
            self._steps += list(stage.program.operations())
        for stage, start in zip(self._stages, starts, strict=True):
            self._walk(stage, start)
        return self._steps, list(self._lives.values())

    def _walk(self, stage: StageProgram, start: int) -> None:
        self._enter(stage, start)
        index = start
        for index, node in enumerate(stage.program.operations(), start):
            for operand in node.all_input_nodes:
                self._use(operand, index)
            self._make(node, index)
        self._leave(stage, index)

    def _enter(self, stage: StageProgram, start: int) -> None:
        """Inputs come when the stage starts; what other IPUs sent is there from the beginning of a pipeline cycle."""
        inputs = [node for node, port in stage.program.placeholders() if port.role is Role.INPUT]
        own, received = inputs[: len(stage.inputs)], inputs[len(stage.inputs) :]
        for node in own:
            self._begin(node, start, "input")
        by_edge = self._flow.value_of_edge
        for edge, node in zip(stage.receives, received, strict=True):
            if edge not in by_edge:
                continue  # a view of a weight
            value = by_edge[edge]
            if edge in self._edges and not self._flow.stashed(value, self._ipu):
                self._alias[node] = self._root(self._edges[edge])
            elif edge in self._edges or self._flow.stashed(value, self._ipu):
                self._begin(node, -1, "restored")  # from the stash when it is needed first
            else:
                self._begin(node, 0 if self._flow.pipelined else start, "received")

    def _begin(self, node: fx.Node, index: int, scope: str) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            size = tensor_bytes(value)
            self._lives[node] = _Life(node.name, scope, size, element_bytes(value.dtype), index, index)

    def _root(self, node: fx.Node) -> fx.Node:
        root = memory_root(node)
        return self._alias.get(root, root)

    def _use(self, operand: fx.Node, index: int) -> None:
        life = self._lives.get(self._root(operand))
        if life is not None:
            if life.first < 0:
                life.first = index
            life.last = max(life.last, index)

    def _make(self, node: fx.Node, index: int) -> None:
        value = node.meta.get("val")
        traits = traits_of(node)
        if not isinstance(value, torch.Tensor) or memory_root(node) is not node or traits.is_in_place:
            return
        info = node.meta.get("poptorch")
        scope = getattr(info, "scope", "")
        first = index + 1 if traits.is_pointwise and self._replaces(node, index) else index
        self._lives[node] = _Life(node.name, scope, tensor_bytes(value), element_bytes(value.dtype), first, index)

    def _replaces(self, node: fx.Node, index: int) -> bool:
        """Whether an elementwise result can take the place of an operand that is used for the last time."""
        size = tensor_bytes(node.meta["val"])
        for operand in node.all_input_nodes:
            root = self._root(operand)
            life = self._lives.get(root)
            if life is not None and life.size == size and root.users and self._last_user(root) is node:
                return True
        return False

    def _last_user(self, root: fx.Node) -> fx.Node | None:
        """The only direct user of a value, if there is one and it is no view."""
        users = list(root.users)
        return users[0] if len(users) == 1 else None

    def _leave(self, stage: StageProgram, end: int) -> None:
        """Results wait for the host, and what is sent waits for the end of the cycle."""
        finish = len(self._steps)
        for output, node in stage.program.returned():
            life = self._lives.get(self._root(node))
            if life is None:
                continue
            if output.kind in (OutputKind.RESULT, OutputKind.ANCHOR):
                life.last = max(life.last, end)
            elif output.kind is OutputKind.GRADIENT and self._gradients_stay:
                life.last = finish
        for edge, node in zip(stage.sends, stage.program.values_of(OutputKind.SEND), strict=True):
            self._edges[edge] = node
        by_edge = self._flow.value_of_edge
        for edge, node in zip(stage.sends, stage.program.values_of(OutputKind.SEND), strict=True):
            life = self._lives.get(self._root(node))
            if life is not None and edge in by_edge:
                leaves = any(self._flow.ipu_of(c) != self._ipu for c in by_edge[edge].consumers)
                life.last = max(life.last, finish if leaves else end)


def curve(liveness: LiveMemory) -> Iterator[tuple[str, float]]:
    """Bytes that are not always live at each operation, with the operation's name."""
    return ((moment.name, moment.bytes) for moment in liveness.moments)


__all__ = ["LiveValue", "LiveMemory", "Moment", "curve", "walk"]
