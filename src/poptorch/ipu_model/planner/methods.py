"""The kinds of vertices that can compute a product or a convolution, with the sizes that they work in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from poptorch.ipu_model.architecture import Architecture, vector_width
from poptorch.ipu_model.cycles import convolution as cycles
from poptorch.ipu_model.cycles.convolution import Array, MatrixUnit, Repeats, Windows
from poptorch.ipu_model.planner.shapes import ProductWork


@dataclass(frozen=True, eq=False)
class TileSizes:
    """What one tile computes, for every candidate of a search."""

    groups: Array
    inputs: Array
    """Groups of input channels."""

    outputs: Array
    """Groups of output channels."""

    rows: Array
    width: Array
    positions: Array
    kernel_rows: Array


@dataclass(frozen=True, eq=False)
class Method:
    """One kind of vertex."""

    codelet: str
    input_group: int
    output_group: int
    cycles: Callable[[TileSizes], Array]
    rate: float
    """Multiplications per cycle that it never exceeds."""

    group_block: int = 1
    """Convolution groups that it takes at once."""

    zeroes: bool = False
    """Whether its partial results are cleared before."""


def methods(chip: Architecture, work: ProductWork, dtype: torch.dtype, partials: torch.dtype) -> list[Method]:
    """The vertices that can do this work."""
    half, half_partials = dtype.itemsize < 4, partials.itemsize < 4
    one = work.kernel_rows * work.kernel_columns == 1
    found: list[Method] = []
    for unit in _units(chip, half, half_partials, work.outputs):
        if one:
            found.append(_matrix_1x1(unit))
        else:
            found.extend(_matrix_nx1(unit, work, at_once) for at_once in _rows_at_once(unit, work))
    if work.inputs == 1 and one:
        found.append(_outer_product(half))
    if work.inputs <= 64 or work.outputs <= 4 or work.positions.outputs.max() <= 4:
        found.append(_horizontal(half, half_partials, work, vector_width(dtype)))
    if half and not one and work.inputs == work.outputs == 1 and work.groups >= 4:
        found.extend(_vertical(half_partials, work, block) for block in (4, 8, 16) if work.groups >= block)
    if half and not one and work.inputs <= 4 and work.stride <= 2:
        found.append(_slic(half_partials, work))
    return found


def _units(chip: Architecture, half: bool, half_partials: bool, outputs: int) -> list[MatrixUnit]:
    full = cycles.matrix_unit(chip, half, half_partials)
    fewer = cycles.matrix_unit(chip, half, half_partials, 8)
    return [full] if full == fewer or -(-outputs // 16) * 16 == -(-outputs // 8) * 8 else [full, fewer]


def _rows_at_once(unit: MatrixUnit, work: ProductWork) -> list[int]:
    """Kernel rows that share the inputs of the unit: more of them for few channels."""
    few = [h for h in (2, 4) if work.inputs * h <= unit.input_channels and work.kernel_rows >= h]
    return [1, *few]


def _repeats(t: TileSizes) -> Repeats:
    return Repeats(t.inputs, t.outputs, t.groups)


def _windows(t: TileSizes, work: ProductWork) -> Windows:
    return Windows(t.rows, t.width, t.kernel_rows, work.kernel_columns)


def _matrix_1x1(unit: MatrixUnit) -> Method:
    return Method(
        "conv1x1",
        unit.input_channels,
        unit.units,
        lambda t: cycles.matrix_1x1(unit, t.positions, _repeats(t), unit.units),
        _rate(unit),
    )


def _rate(unit: MatrixUnit) -> float:
    return unit.units * unit.input_channels / (4 if unit.half_inputs else 8)


def _matrix_nx1(unit: MatrixUnit, work: ProductWork, at_once: int) -> Method:
    def count(t: TileSizes) -> Array:
        vertex = cycles.matrix_nx1(unit, _windows(t, work), at_once, _repeats(t), unit.units)
        return vertex + cycles.zero_partials(t.positions, _repeats(t), unit.units)

    return Method("convnx1", unit.input_channels // at_once, unit.units, count, _rate(unit), zeroes=True)


def _horizontal(half: bool, half_partials: bool, work: ProductWork, vector: int) -> Method:
    def count(t: TileSizes) -> Array:
        return cycles.horizontal_mac(
            half, half_partials, t.rows * t.width, t.kernel_rows * work.kernel_columns, t.inputs * vector, t.outputs,
            groups=t.groups,
        )  # fmt: skip

    return Method("hmac", vector, 1, count, float(vector))


def _vertical(half_partials: bool, work: ProductWork, block: int) -> Method:
    def count(t: TileSizes) -> Array:
        return cycles.vertical_mac(half_partials, _windows(t, work), block, t.groups)

    return Method("vmac", 1, 1, count, 4.0, group_block=block)


def _slic(half_partials: bool, work: ProductWork) -> Method:
    channels = next(c for c in (1, 2, 4) if c >= work.inputs)
    windows = -(-work.kernel_columns // 4)
    block = min(4 // channels, work.groups)

    def count(t: TileSizes) -> Array:
        calls = t.groups * t.outputs
        return cycles.slic(half_partials, t.rows, t.width, t.kernel_rows * windows, channels, work.stride, calls)

    outputs = 4 if channels == 4 else channels
    return Method("slic", channels, outputs, count, 32.0, group_block=block)


def _outer_product(half: bool) -> Method:
    return Method(
        "outer_product",
        1,
        1,
        lambda t: cycles.outer_product(half, t.positions, t.outputs, t.groups),
        4.0 if half else 2.0,
    )


__all__ = ["Method", "TileSizes", "methods"]
