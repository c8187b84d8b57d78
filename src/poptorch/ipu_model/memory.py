"""What lies on the tiles of each IPU: what is always there, and the most that comes on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import fx

from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.memory import Category, Home
from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.book import OpRecord
from poptorch.ipu_model.code import CodeBytes
from poptorch.ipu_model.flow import Flow
from poptorch.ipu_model.liveness import LiveMemory, walk
from poptorch.ipu_model.tiles import Span, TileBytes, TileMapper, element_bytes
from poptorch.ipu_model.updating import UpdateCosts
from poptorch.program.graphs import memory_root
from poptorch.program.program import Role

CATEGORIES: Mapping[Category, str] = {
    Category.WEIGHT: "weights",
    Category.ACCUMULATOR: "accumulators",
    Category.OPTIMIZER: "optimizer state",
    Category.BUFFER: "buffers",
    Category.CONSTANT: "constants",
}
"""Tensors that are always live, by their names in reports. Activations have stashes, inputs and outputs lifetimes."""

FRAGMENTATION = 0.03
"""Share of the memory that is not always live that is lost between allocations."""


@dataclass(frozen=True)
class Tensor:
    """A tensor that is always in the memory of an IPU."""

    name: str
    category: str
    bytes: float
    span: Span


@dataclass
class IpuMemory:
    """The memory of one IPU."""

    ipu: int
    limit: int
    """Bytes of one tile."""

    code_limit: int
    by_category: dict[str, TileBytes] = field(repr=False)
    """Bytes on every tile that are always in use, and at the fullest moment those that are not."""

    tensors: list[Tensor] = field(repr=False)
    liveness: LiveMemory = field(repr=False)
    update_bytes: float = 0.0
    """On each tile, while weights are updated."""

    @property
    def on_tiles(self) -> TileBytes:
        """All bytes on every tile, at the fullest moment."""
        total: TileBytes = np.sum(list(self.by_category.values()), axis=0)
        return total

    @property
    def peak_tile(self) -> int:
        """The fullest tile."""
        return int(self.on_tiles.argmax())

    @property
    def peak_tile_bytes(self) -> int:
        """Bytes on the fullest tile at its fullest moment."""
        return int(self.on_tiles.max())

    @property
    def tiles_over(self) -> int:
        """How many tiles hold more than they can."""
        return int((self.on_tiles > self.limit).sum())

    @property
    def code_bytes(self) -> int:
        """Code on the tile that has the most of it."""
        kinds = ("vertex code", "exchange code", "control code", "host exchange code")
        return int(np.sum([self.by_category[k] for k in kinds if k in self.by_category], axis=0).max())

    @property
    def fits(self) -> bool:
        """Whether every tile has room, and the code fits where instructions come from."""
        return self.peak_tile_bytes <= self.limit and self.code_bytes <= self.code_limit

    @property
    def memory(self) -> dict[str, int]:
        """Bytes on all tiles by category."""
        return {category: round(float(tiles.sum())) for category, tiles in self.by_category.items()}

    @property
    def total(self) -> int:
        """Bytes on all tiles."""
        return sum(self.memory.values())

    def blame(self, count: int = 8) -> list[tuple[str, str, int]]:
        """The largest tensors at the fullest moment: name, what it is, bytes on all tiles.

        What the operation of that moment needs for itself is one of them.
        """
        always = [(t.name, t.category, round(t.bytes)) for t in self.tensors]
        live = [(v.name, v.scope or "activation", v.bytes) for v in self.liveness.live_at_peak()]
        life, own = self.liveness, []
        if life.temporary and life.moments:
            moment = life.moments[life.peak]
            where = moment.source or moment.scope.rpartition("/")[2]
            what = f"temporary, {where}" if where else "temporary"
            own = [(moment.name, what, round(life.temporary * life.temporary_tiles))]
        return sorted([*always, *live, *own], key=lambda item: -item[2])[:count]


def memory_of(
    flow: Flow,
    chip: Architecture,
    costs: Mapping[fx.Node, OpRecord],
    extra: Mapping[int, Sequence[OpRecord]],
    update: UpdateCosts,
) -> list[IpuMemory]:
    """The memory of every IPU of a replica; ``extra`` are operations on an IPU that no program has."""
    return [_Memory(flow, chip, ipu, costs, extra.get(ipu, ()), update).found() for ipu in flow.ipus]


class _Memory:
    """Works out the memory of one IPU."""

    def __init__(
        self,
        flow: Flow,
        chip: Architecture,
        ipu: int,
        costs: Mapping[fx.Node, OpRecord],
        extra: Sequence[OpRecord],
        update: UpdateCosts,
    ) -> None:
        self._flow = flow
        self._device: DeviceProgram = flow.device
        self._chip = chip
        self._ipu = ipu
        self._costs = costs
        self._extra = extra
        self._update = update
        self._mapper = TileMapper(chip.tiles)

    def found(self) -> IpuMemory:
        """All of it."""
        tensors = [*self._homes(), *self._stashes()]
        by_category: dict[str, TileBytes] = {}
        for tensor in tensors:
            tiles = by_category.setdefault(tensor.category, np.zeros(self._chip.tiles))
            end = tensor.span.first + tensor.span.tiles
            tiles[tensor.span.first : end] += tensor.span.share
            tiles[: max(0, end - self._chip.tiles)] += tensor.span.share
        by_category.update(self._code().by_category)
        always: TileBytes = np.sum(list(by_category.values()), axis=0)
        loop = self._device.loop
        stay = loop.gradient_accumulation == 1 and (loop.all_replicas or loop.replicas) > 1
        liveness = walk(self._flow, self._ipu, self._costs, always, gradients_stay=stay)
        update = self._updating()
        peak = float((always + liveness.at_peak).max())
        updating = float(always.max()) + update > peak
        coming = np.full(self._chip.tiles, update) if updating else liveness.at_peak
        by_category["activations and temporaries"] = coming
        by_category["gaps"] = FRAGMENTATION * coming
        return IpuMemory(
            self._ipu, self._chip.memory_per_tile, self._chip.code_memory, by_category, tensors, liveness, update
        )

    def _homes(self) -> list[Tensor]:
        """Weights and what belongs to them. In streaming memory, the largest part of them is here for a while."""
        busiest = self._weight_shares()
        found, parts = [], {p for p, part in enumerate(self._device.plan.parts) if part.ipu == self._ipu}
        for home in self._device.memory.homes:
            if home.category not in CATEGORIES or not parts.intersection(home.parts):
                continue
            if home.on_chip:
                found.append(self._tensor(home, busiest))
        if self._flow.device.plan.ordering.is_phased:
            found += self._largest_phase(parts, busiest)
        else:
            found += [
                self._tensor(home, busiest)
                for home in self._device.memory.streaming()
                if home.category in (Category.WEIGHT, Category.ACCUMULATOR) and parts.intersection(home.parts)
            ]
        return found

    def _largest_phase(self, parts: set[int], busiest: Mapping[str, float]) -> list[Tensor]:
        """What one phase loads; the next one is loaded beside it where that overlaps."""
        kinds = (Category.WEIGHT, Category.ACCUMULATOR, Category.OPTIMIZER)
        streaming = [h for h in self._device.memory.streaming() if h.category in kinds]
        by_part = {p: [h for h in streaming if p in h.parts] for p in parts}
        ranked = sorted(by_part.values(), key=lambda homes: -sum(h.bytes_per_replica for h in homes))
        resident = ranked[: 2 if self._device.plan.overlap_loads else 1]
        return [self._tensor(home, busiest) for homes in resident for home in homes]

    def _tensor(self, home: Home, busiest: Mapping[str, float]) -> Tensor:
        item = element_bytes(home.dtype)
        size = -(-home.elements // home.shards) * item
        share = busiest.get(home.name, 0.0) if home.category is Category.WEIGHT and home.shards == 1 else 0.0
        span = self._mapper.linear(size, item, share)
        return Tensor(home.name, CATEGORIES[home.category], size, span)

    def _weight_shares(self) -> dict[str, float]:
        """What plans of products say about the bytes of each weight on the busiest tile."""
        shares: dict[str, float] = {}
        for stage in self._flow.stages_on(self._ipu):
            names = {n: p.name for n, p in stage.program.placeholders() if p.role is Role.PARAMETER}
            for node in stage.program.operations():
                record = self._costs.get(node)
                if record is None or not record.cost.weight_tile_bytes:
                    continue
                for operand in node.all_input_nodes:
                    name = names.get(memory_root(operand))
                    if name is not None:
                        shares[name] = max(shares.get(name, 0.0), record.cost.weight_tile_bytes)
        return shares

    def _stashes(self) -> list[Tensor]:
        return [
            Tensor(s.value.name, "stashes", s.bytes, self._mapper.linear(s.bytes, s.value.item))
            for s in self._flow.stashes
            if s.ipu == self._ipu and s.on_chip
        ]

    def _code(self) -> CodeBytes:
        outlined = self._device.settings.backend.outlining
        code = CodeBytes(self._chip.tiles, outlined)
        for stage in self._flow.stages_on(self._ipu):
            code.add(self._costs[n] for n in stage.program.operations() if n in self._costs)
        code.add(self._extra)
        code.add(self._update.on(self._ipu))
        return code

    def _updating(self) -> float:
        """Bytes on a tile while weights are updated: temporaries, and the state of one weight from streaming memory."""
        temporary = max((r.cost.temporary_bytes for r in self._update.on(self._ipu)), default=0.0)
        by_weight: dict[str, int] = {}
        for home in self._device.memory.streaming():
            here = any(self._device.plan.parts[p].ipu == self._ipu for p in home.parts)
            if home.category is Category.OPTIMIZER and here:
                weight = home.name.partition("___")[2]
                by_weight[weight] = by_weight.get(weight, 0) + home.bytes_per_replica
        return temporary + max(by_weight.values(), default=0) / self._chip.tiles


__all__ = ["CATEGORIES", "IpuMemory", "Tensor", "memory_of"]
