"""The search: all splits of a piece of work over the tiles, evaluated at once as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from poptorch.ipu_model.architecture import Architecture, vector_width
from poptorch.ipu_model.calibration import PLANNED_COMPUTE
from poptorch.ipu_model.cycles.convolution import Array, cast_partials, ceil_div, reduce_partials, reduction_stages
from poptorch.ipu_model.planner.methods import Method, TileSizes, methods
from poptorch.ipu_model.planner.shapes import ProductWork, split_sizes

Indices = npt.NDArray[np.int64]

_SERIAL = (2, 4, 8, 16, 32, 64)
_SLACK = 1.25
"""A plan may always use this many times the bytes of the leanest plan. So there is always a plan, and a larger share of
the memory never leads to a slower one."""


@dataclass(frozen=True)
class Types:
    """Element types of a product."""

    operands: torch.dtype
    partials: torch.dtype

    @property
    def pair(self) -> tuple[torch.dtype, torch.dtype]:
        """Both."""
        return self.operands, self.partials

    @property
    def half_operands(self) -> bool:
        """Whether operands and results have two bytes or less."""
        return self.operands.itemsize < 4

    @property
    def half_partials(self) -> bool:
        """Whether partial sums have two bytes or less."""
        return self.partials.itemsize < 4


@dataclass(frozen=True)
class PlanStage:
    """One stage of the sum of partial results."""

    depth: int
    exchange_bytes: float
    cycles: float


@dataclass(frozen=True)
class ProductPlan:
    """How one piece of work is spread, with the sizes of its largest tile."""

    codelet: str
    tiles: int
    serial_inputs: int
    serial_outputs: int
    group_splits: int
    position_splits: int
    output_splits: int
    input_splits: int
    """Kernel splits included: the depth of the sum that follows."""

    input_bytes: float
    weight_bytes: float
    partial_elements: float
    exchange_bytes: float
    cycles: float
    """Of the vertices, zeroing included."""

    transpose_cycles: float
    slice_cycles: float
    add_cycles: float
    cast_cycles: float
    stages: tuple[PlanStage, ...]
    temporary_bytes: float
    total: float
    """Everything, synchronisation included: what the search minimises."""

    form: int = 0
    """Which of the forms of the work it is for."""

    zeroes: bool = False

    @property
    def serial(self) -> int:
        """How many times the work is repeated."""
        return self.serial_inputs * self.serial_outputs


@dataclass(frozen=True, eq=False)
class _Splits:
    """Candidates: into how many parts each dimension is cut."""

    groups: Array
    position: Array
    """Index of the way to split positions."""

    outputs: Array
    inputs: Array
    kernel: Array


def search(chip: Architecture, works: Sequence[ProductWork], types: Types, bound: float) -> ProductPlan:
    """The fastest plan whose temporary bytes per tile stay within the bound.

    ``works`` are forms of the same work, such as a product and its transpose; the plan tells which one it is for.
    """
    ways = [(form, method) for form, work in enumerate(works) for method in methods(chip, work, *types.pair)]
    at_once = [_Candidates(chip, works, types, form, method) for form, method in ways]
    fastest = _fastest(at_once, np.inf)
    if fastest.temporary_bytes <= bound:
        return fastest
    serial = [
        _Candidates(chip, works, types, form, method, *steps)
        for form, method in ways
        for steps in _serial(works[form], method)
    ]
    everything = at_once + serial
    leanest = min(float(it.temporary.min()) for it in everything)
    return _fastest(everything, max(bound, _SLACK * leanest))


def _serial(work: ProductWork, method: Method) -> list[tuple[int, int]]:
    """Numbers of steps over input channels and over output channels."""
    inputs, outputs = -(-work.inputs // method.input_group), -(-work.outputs // method.output_group)
    return [(n, 1) for n in _SERIAL if n <= inputs] + [(1, n) for n in _SERIAL if n <= outputs]


def _fastest(candidates: list[_Candidates], bound: float) -> ProductPlan:
    best: ProductPlan | None = None
    for it in candidates:
        plan = it.fastest(bound, np.inf if best is None else best.total)
        if plan is not None:
            best = plan
    assert best is not None  # one tile can do all work, and the bound admits the leanest plan
    return best


class _Candidates:
    """All plans for one form of the work with one kind of vertex and one serial split."""

    def __init__(
        self,
        chip: Architecture,
        works: Sequence[ProductWork],
        types: Types,
        form: int,
        method: Method,
        serial_inputs: int = 1,
        serial_outputs: int = 1,
    ) -> None:
        self.chip, self.work, self.types, self.form, self.method = chip, works[form], types, form, method
        self.serial_inputs, self.serial_outputs = serial_inputs, serial_outputs
        work = self.work
        self.input_groups = math.ceil(math.ceil(work.inputs / method.input_group) / serial_inputs)
        self.output_groups = math.ceil(math.ceil(work.outputs / method.output_group) / serial_outputs)
        self.splits = self._grid()
        self.sizes = self._sizes(self.splits)
        self._bytes()

    def _grid(self) -> _Splits:
        tiles, work = self.chip.tiles, self.work
        blocks = -(-work.groups // self.method.group_block)
        axes = (
            np.array(split_sizes(blocks, most=tiles), np.float64),
            np.arange(work.positions.count, dtype=np.float64),
            np.array(split_sizes(self.output_groups, even=True, most=tiles), np.float64),
            np.array(split_sizes(self.input_groups, most=tiles), np.float64),
            np.array(split_sizes(work.kernel_rows, most=tiles), np.float64),
        )
        counts = [axes[0], work.positions.splits, *axes[2:]]
        used = np.ones(1)
        index = [np.zeros(1, np.int64) for _ in axes]
        # One axis at a time, so that the grid never holds what uses too many tiles.
        for place, count in enumerate(counts):
            product = used[:, None] * count[None, :]
            rows, columns = np.nonzero(product <= tiles)
            used = product[rows, columns]
            index = [it[rows] for it in index]
            index[place] = columns
        if self.serial_inputs * self.serial_outputs > 1:  # work that does not fit at once needs most tiles
            index = [it[used >= tiles / 4] for it in index] if (used >= tiles / 4).any() else index
        return _Splits(*(axis[it] for axis, it in zip(axes, index, strict=True)))

    def _sizes(self, splits: _Splits) -> TileSizes:
        work = self.work
        at = splits.position.astype(np.int64)
        return TileSizes(
            ceil_div(-(-work.groups // self.method.group_block), splits.groups),
            ceil_div(self.input_groups, splits.inputs),
            ceil_div(self.output_groups, splits.outputs),
            work.positions.rows[at],
            work.positions.width[at],
            work.positions.outputs[at],
            ceil_div(work.kernel_rows, splits.kernel),
        )

    def _bytes(self) -> None:
        """Bytes of operands and partial results on a tile, and what it receives of them."""
        t, s, work, method, positions = self.sizes, self.splits, self.work, self.method, self.work.positions
        at = s.position.astype(np.int64)
        element, partial = self.types.operands.itemsize, self.types.partials.itemsize
        groups = t.groups * method.group_block
        inputs, outputs = t.inputs * method.input_group, t.outputs * method.output_group
        self.position_splits = positions.splits[at]
        self.depth = s.inputs * s.kernel
        self.used = s.groups * self.position_splits * s.outputs * self.depth
        read = np.where(t.kernel_rows < work.kernel_rows, np.minimum(positions.inputs[at], t.positions * t.kernel_rows),
                        positions.inputs[at])  # fmt: skip
        self.input_bytes = groups * inputs * read * element
        self.weight_bytes = groups * inputs * outputs * t.kernel_rows * work.kernel_columns * element
        self.partial_elements = groups * outputs * t.positions
        partial_bytes = self.partial_elements * partial
        shared = np.where(s.outputs % self.chip.sharing_tiles == 0, self.chip.sharing_tiles, 1)
        self.exchange_bytes = np.ceil(self.input_bytes * (1 - 1 / s.outputs) / shared)
        self.exchange_bytes = self.exchange_bytes + np.ceil(self.weight_bytes * (1 - 1 / self.position_splits))
        turned = self.input_bytes if work.transposes else 0.0
        reduced = np.where(self.depth > 1, 2 * partial_bytes, 0.0)
        self.temporary = np.maximum(turned + self.input_bytes + self.weight_bytes + partial_bytes, reduced)
        if self.serial_inputs > 1:
            self.temporary = self.temporary + partial_bytes

    def fastest(self, bound: float, limit: float) -> ProductPlan | None:
        """The fastest plan within the bytes, if it is faster than the limit."""
        t, work = self.sizes, self.work
        serial = self.serial_inputs * self.serial_outputs
        products = t.groups * self.method.group_block * t.inputs * self.method.input_group * t.rows * t.width
        products = products * t.outputs * self.method.output_group * t.kernel_rows * work.kernel_columns
        floor = serial * (self.exchange_bytes / self.chip.exchange_bytes + products / self.method.rate)
        keep = np.nonzero((self.temporary <= bound) & (floor < limit))[0]
        if not len(keep):
            return None
        # The candidate with the lowest floor is usually good: its time drops most of the others.
        first = keep[np.argmin(floor[keep])]
        ceiling = float(self._totals(np.array([first]))[0])
        keep = keep[floor[keep] <= min(limit, ceiling)]
        totals = self._totals(keep)
        place = int(np.argmin(totals))
        return self._plan(int(keep[place]), float(totals[place])) if totals[place] < limit else None

    def _at(self, keep: Indices) -> TileSizes:
        t = self.sizes
        return TileSizes(
            t.groups[keep], t.inputs[keep], t.outputs[keep], t.rows[keep], t.width[keep], t.positions[keep],
            t.kernel_rows[keep],
        )  # fmt: skip

    def _computes(self, keep: Indices) -> Array:
        """Cycles of the vertices that multiply."""
        return PLANNED_COMPUTE.value * self.method.cycles(self._at(keep))

    def _totals(self, keep: Indices) -> Array:
        """Cycles of everything, for some candidates."""
        chip = self.chip
        step = chip.sync_cycles
        exchange = np.ceil(self.exchange_bytes[keep] / chip.exchange_bytes) + chip.exchange_skew + step
        total = exchange + self._computes(keep) + step
        total = total + self._transposes(keep) + self._slices(keep) + self._additions(keep) + self._casts(keep)
        for depth in np.unique(self.depth[keep]):
            here = self.depth[keep] == depth
            total[here] += sum(it + chip.exchange_skew + 2 * step for it in self._stage_cycles(int(depth), keep[here]))
        return np.asarray(total * self.serial_inputs * self.serial_outputs)

    def _stage_cycles(self, depth: int, keep: Indices) -> list[Array]:
        return [np.ceil(moved / self.chip.exchange_bytes) + work for _, moved, work in self._stages(depth, keep)]

    def _stages(self, depth: int, keep: Indices) -> list[tuple[int, Array, Array]]:
        """Depth, exchanged bytes and cycles of each stage of the sum."""
        elements = self.partial_elements[keep]
        stages = []
        steps = reduction_stages(depth)
        for place, number in enumerate(steps):
            half_output = self.types.half_partials if place + 1 < len(steps) else self.types.half_operands
            moved = np.ceil(elements * self.types.partials.itemsize)
            elements = ceil_div(elements, number)
            work = reduce_partials(elements, number, half_output, self.types.half_partials, single_input=False)
            stages.append((number, moved, PLANNED_COMPUTE.value * work))
        return stages

    def _transposes(self, keep: Indices) -> Array:
        """Turn the inputs on the tile around, 64 bits per cycle."""
        if not self.work.transposes:
            return 0.0 * self.depth[keep]
        return np.ceil(self.input_bytes[keep] * 5 / 4 / self.chip.copy_bytes) + self.chip.sync_cycles

    def _slices(self, keep: Indices) -> Array:
        """Cut out the operands of one serial step, and put its result in place."""
        if self.serial_inputs * self.serial_outputs == 1:
            return 0.0 * self.depth[keep]
        width = vector_width(self.types.operands)
        held = self.weight_bytes[keep] / self.position_splits[keep]
        if self.serial_inputs > 1:
            held = held + self.input_bytes[keep] / self.splits.outputs[keep]
        moved = [ceil_div(held, self.types.operands.itemsize)]
        if self.serial_outputs > 1:
            moved.append(ceil_div(self.partial_elements[keep], self.depth[keep]))
        return np.asarray(sum(25 + 6 * (39 + 24 + 2 * np.ceil(it / 6) / width) + self.chip.sync_cycles for it in moved))

    def _additions(self, keep: Indices) -> Array:
        """Add the result of a serial step to those before it."""
        if self.serial_inputs == 1:
            return 0.0 * self.depth[keep]
        elements = ceil_div(self.partial_elements[keep], self.depth[keep])
        share = np.ceil(elements / 6)
        return 11 + 6 * (58 + 3 * np.ceil(share / vector_width(self.types.partials))) + self.chip.sync_cycles

    def _casts(self, keep: Indices) -> Array:
        """Results that need no sum may have the wrong type."""
        if self.types.half_operands == self.types.half_partials:
            return 0.0 * self.depth[keep]
        cast = cast_partials(self.partial_elements[keep], self.types.half_operands, self.types.half_partials)
        return np.where(self.depth[keep] == 1, cast + self.chip.sync_cycles, 0.0)

    def _plan(self, at: int, total: float) -> ProductPlan:
        keep = np.array([at])
        s = self.splits
        sync = self.chip.sync_cycles

        def without_sync(cycles: Array) -> float:
            return max(0.0, float(cycles[0]) - sync)

        stages = self._stages(int(self.depth[at]), keep)
        return ProductPlan(
            codelet=self.method.codelet,
            tiles=int(self.used[at]),
            serial_inputs=self.serial_inputs,
            serial_outputs=self.serial_outputs,
            group_splits=int(s.groups[at]),
            position_splits=int(self.position_splits[at]),
            output_splits=int(s.outputs[at]),
            input_splits=int(self.depth[at]),
            input_bytes=float(self.input_bytes[at]),
            weight_bytes=float(self.weight_bytes[at]),
            partial_elements=float(self.partial_elements[at]),
            exchange_bytes=float(self.exchange_bytes[at]),
            cycles=float(self._computes(keep)[0]),
            transpose_cycles=without_sync(self._transposes(keep)),
            slice_cycles=without_sync(self._slices(keep)),
            add_cycles=without_sync(self._additions(keep)),
            cast_cycles=without_sync(self._casts(keep)),
            stages=tuple(PlanStage(number, float(moved[0]), float(work[0])) for number, moved, work in stages),
            temporary_bytes=float(self.temporary[at]),
            total=total,
            form=self.form,
            zeroes=self.method.zeroes,
        )


__all__ = ["ProductPlan", "PlanStage", "Types", "search"]
