"""Cycles of the vertices of matrix products and convolutions, and of the sums of their partial results.

Sizes may be numbers or arrays of numbers: a planner evaluates thousands of candidates at once. Results are cycles of
one tile. The matrix unit (AMP) keeps its weights while positions stream through it; the other vertices use the plain
floating-point units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poptorch.ipu_model.architecture import Architecture

Array = npt.NDArray[np.float64]
Sizes = npt.ArrayLike

_WORKERS = 6
_UNIT_WEIGHT_BYTES = 32


@dataclass(frozen=True)
class MatrixUnit:
    """How the matrix unit of a tile is used: types and the number of output channels that it computes at once."""

    half_inputs: bool
    half_partials: bool
    units: int
    load_bytes: int = 8
    """Of weights per cycle."""

    @property
    def input_channels(self) -> int:
        """That one unit multiplies at once.

        >>> MatrixUnit(True, True, 16).input_channels, MatrixUnit(False, False, 16).input_channels
        (16, 8)
        """
        return 16 if self.half_inputs else 8

    @property
    def load_cycles(self) -> int:
        """To load the weights of all units."""
        return self.units * _UNIT_WEIGHT_BYTES // self.load_bytes

    @property
    def keeps_state(self) -> bool:
        """Whether workers keep their registers from one call to the next: all paths but float32 and half-used units."""
        return self.half_inputs and (self.units == 16 or not self.half_partials)


@dataclass(frozen=True)
class Windows:
    """The outputs of a vertex, and the kernel that slides over its inputs."""

    rows: Sizes
    """Of outputs, in all samples on the tile."""

    width: Sizes
    kernel_rows: Sizes
    kernel_columns: Sizes


@dataclass(frozen=True)
class Repeats:
    """How often a vertex of the matrix unit does its work: for groups of channels, and for groups of a convolution."""

    inputs: Sizes = 1
    outputs: Sizes = 1
    groups: Sizes = 1


_ONCE = Repeats()


def matrix_unit(chip: Architecture, half_inputs: bool, half_partials: bool, units: int = 0) -> MatrixUnit:
    """All units that the chip has for these types, or only some of them."""
    if not half_inputs:
        most = chip.units_float
    else:
        most = chip.units_half if half_partials else chip.units_half_float
    return MatrixUnit(half_inputs, half_partials, min(units or most, most), chip.weight_load_bytes)


def ceil_div(dividend: Sizes, divisor: Sizes) -> Array:
    """The quotient, rounded up.

    >>> float(ceil_div(7, 2))
    4.0
    """
    return np.ceil(np.asarray(dividend, np.float64) / np.asarray(divisor, np.float64))


def _share(positions: Array) -> tuple[Array, Array]:
    """Positions of the worker with most and with least work."""
    return np.ceil(positions / _WORKERS), np.floor(positions / _WORKERS)


def _positions_1x1(unit: MatrixUnit, m: Array, zeroes: bool) -> Array:
    """Worker cycles of one pass over some positions."""
    first = [m == 0, m == 1, m == 2]
    if unit.keeps_state:
        extra = (1 if zeroes else 2) - 7
        return np.select(
            first, [20.0 + extra, 31.0 + extra, 40.0 + extra], (37.0 if zeroes else 38.0) + 4 * (m - 3) - 7
        )
    if unit.half_inputs:
        zeroing = (2 + 2 * m) if zeroes else 0 * m
        return np.select(first, [24.0 + 0 * m, 39.0 + zeroing, 40.0 + zeroing], 41.0 + zeroing + 4 * (m - 3))
    zeroing = (2 + (8 if unit.units == 16 else 4) * m) if zeroes else 0 * m
    return np.select(first, [24.0 + 0 * m, 47.0 + zeroing, 46.0 + zeroing], 46.0 + zeroing + 8 * (m - 3))


def _pass_1x1(unit: MatrixUnit, positions: Array, zeroes: bool) -> Array:
    most, least = _share(positions)
    one, other = _positions_1x1(unit, most, zeroes), np.where(least > 0, _positions_1x1(unit, least, zeroes), 0.0)
    return np.maximum(_WORKERS * np.maximum(one, other), _WORKERS * np.minimum(one, other) + 14)


def matrix_1x1(unit: MatrixUnit, positions: Sizes, repeats: Repeats = _ONCE, outputs_per_group: int = 16) -> Array:
    """One vertex that multiplies positions by a matrix with the matrix unit: a product, or a 1x1 convolution.

    >>> half = MatrixUnit(True, True, 16)
    >>> float(matrix_1x1(half, 1024)), float(matrix_1x1(half, 100, Repeats(4, 2)))
    (4417.0, 5091.0)
    """
    n, inner, outer = (np.asarray(it, np.float64) for it in (positions, repeats.inputs, repeats.outputs))
    count = np.asarray(repeats.groups, np.float64)
    passes = -(-outputs_per_group // unit.units)
    kept = unit.keeps_state
    reuse = 6 * (7 + 3 * (inner * count - 1)) if kept else 0.0 * inner
    k = 1 if kept or not unit.half_inputs else 0
    load = unit.load_cycles
    accumulate = 16 - k + outer * (19 + passes * (6 + load + _pass_1x1(unit, n, zeroes=False)))
    first = outer * (19 - k + passes * (7 + load + _pass_1x1(unit, n, zeroes=True)))
    return np.asarray(50 + reuse + count * (12 + k + (inner - 1) * accumulate + 11 + first))


def _row_pieces(elements: Array, width: Array) -> list[tuple[Array, Array, Array, Array]]:
    """For each worker: sizes of its first and last piece of a row, the number of whole rows between, and its size."""
    pieces = []
    for worker in range(_WORKERS):
        begin = np.floor(worker * elements / _WORKERS)
        end = np.floor((worker + 1) * elements / _WORKERS)
        size = end - begin
        row, last_row = np.floor(begin / width), np.floor((end - 1) / width)
        one = last_row <= row
        first = np.where(one, size, (row + 1) * width - begin)
        last = np.where(one, 0, end - last_row * width)
        pieces.append((first, last, np.where(one, 0, last_row - row - 1), size))
    return pieces


def _piece_nx1(unit: MatrixUnit, m: Array) -> Array:
    """Worker cycles of one piece of a row."""
    if unit.half_inputs:
        extra = 1 if unit.units == 16 or not unit.half_partials else 0
        cycles = np.select(
            [m == 0, m == 1, m == 2], [17.0 + 0 * m, 29.0 + 0 * m, 33.0 + extra + 0 * m], 34 + 4 * (m - 3)
        )
    else:
        cycles = np.select([m == 0, m == 1, m == 2], [17.0 + 0 * m, 33.0 + 0 * m, 44.0 + 0 * m], 45 + 8 * (m - 3))
    return 3 + cycles - 9


def matrix_nx1(
    unit: MatrixUnit,
    windows: Windows,
    rows_at_once: int = 1,
    repeats: Repeats = _ONCE,
    outputs_per_group: int = 16,
) -> Array:
    """One vertex of a convolution with the matrix unit.

    ``rows_at_once`` rows of the kernel are fed together, so that few input channels still fill the unit.

    >>> float(matrix_nx1(MatrixUnit(True, True, 16), Windows(4, 7, 3, 3), 1, Repeats(4, 2)))
    39521.0
    """
    height, wide = np.asarray(windows.rows, np.float64), np.asarray(windows.width, np.float64)
    inner, outer, count = (np.asarray(it, np.float64) for it in (repeats.inputs, repeats.outputs, repeats.groups))
    slowest, fastest = np.asarray(0.0), np.asarray(np.inf)
    for first, last, whole, size in _row_pieces(height * wide, wide):
        ends = np.where(first > 0, _piece_nx1(unit, first), 0) + np.where(last > 0, _piece_nx1(unit, last), 0)
        worker = 17 + (1 if unit.half_partials else 0) + ends + whole * _piece_nx1(unit, wide)
        worker = np.where(size > 0, worker, 0)
        slowest, fastest = np.maximum(slowest, worker), np.minimum(fastest, worker)
    position = np.maximum(_WORKERS * slowest, _WORKERS * fastest + 9)
    passes = -(-outputs_per_group // unit.units)
    outer_loops = ceil_div(windows.kernel_rows, rows_at_once)
    inner_loops = np.asarray(windows.kernel_columns, np.float64)
    extra = {1: 15, 2: 46, 4: 60}.get(rows_at_once, 20 * rows_at_once)
    load = unit.units * _UNIT_WEIGHT_BYTES // (8 if rows_at_once == 4 else unit.load_bytes)
    loop = outer_loops * (14 + inner_loops * (12 + passes * (load + extra + 3)))
    loop = loop + position * passes * outer_loops * inner_loops
    zeroing = 10 if unit.half_partials else 9
    fixed = 109 + 54 + 6 * zeroing + count * (17 * outer + 6 * (outer - 1) + 1) + 6 * (count - 1) + 1
    return np.asarray(fixed + count * (16 + inner * (14 + outer * (14 + loop))))


def zero_partials(positions: Sizes, repeats: Repeats = _ONCE, outputs_per_group: int = 16) -> Array:
    """Clear the partial results before a vertex that only accumulates.

    >>> float(zero_partials(28, Repeats(outputs=2)))
    516.0
    """
    share = ceil_div(np.asarray(positions, np.float64) * outputs_per_group, _WORKERS)
    return np.asarray(_WORKERS * np.asarray(repeats.groups) * np.asarray(repeats.outputs) * (np.ceil(share / 2) + 5))


def dot_product(channels: Sizes, half_inputs: bool, half_partials: bool) -> Array:
    """Worker cycles of the sum of products over some channels, without the matrix unit."""
    n = np.asarray(channels, np.float64)
    vector = 4 if half_inputs else 2
    both = half_inputs and half_partials
    outputs = 2 if both else 1
    width = np.select([n % vector == 0, n % 2 == 0], [vector, 2], 1)
    loop = (n / width) * np.where(width == vector, 1, 2)
    return np.asarray(3 * outputs + both + 4 + np.where(width < vector, outputs, 0) + loop - half_inputs)


def horizontal_mac(
    half_inputs: bool,
    half_partials: bool,
    positions: Sizes,
    kernel_positions: Sizes,
    channels: Sizes,
    outputs: Sizes,
    groups: Sizes = 1,
) -> Array:
    """One vertex that computes every output as a dot product: for few output channels or odd types.

    >>> float(horizontal_mac(True, False, 6, 1, 16, 1))
    539.0
    """
    most, _ = _share(np.asarray(positions, np.float64))
    both = half_inputs and half_partials
    step = 2 if both else 1
    done = ceil_div(outputs, step)  # two outputs at a time with float16 partial results
    item = 19 + most * (7 + done * dot_product(channels, half_inputs, half_partials))
    saving = 6 if half_inputs else 0
    worker = np.asarray(kernel_positions, np.float64) * (16 - saving + item + 16)
    fixed = (65 if half_inputs else 58) + 6 * (10 if half_partials else 9)
    return np.asarray(fixed + np.asarray(groups) * (23 + 15 + 10 + _WORKERS * worker))


def vertical_mac(half_partials: bool, windows: Windows, groups_at_once: int = 8, groups: Sizes = 1) -> Array:
    """One vertex of a depthwise or finely grouped convolution in float16; ``groups`` counts blocks of groups.

    A worker takes columns of the kernel for each of its outputs; the workers' results are then added.
    """
    g = groups_at_once
    outputs = np.asarray(windows.rows, np.float64) * np.asarray(windows.width, np.float64)
    column = np.asarray(windows.kernel_rows, np.float64)
    dot = 3 + 3 * (column - 1) * (g / 8) if g >= 8 else 3 + 2 * (column - 1) * (g / 4)
    if g == 4:
        base, item = (18, 7 + 3) if half_partials else (19, 7 + 5)
    elif g == 8:
        base, item = 13, 22
    else:
        base, item = 25, 2 * 22
    items = np.ceil(outputs * np.asarray(windows.kernel_columns, np.float64) / _WORKERS)
    worker = base + items * (item + dot)
    values = outputs * g
    zero = 4 + values / (4 if half_partials else 2)
    float_partials = 0 if half_partials else 1
    reduction = (
        10 - float_partials + (7 + 2 * float_partials + (1 if half_partials else 2) * 5) * np.ceil(values / 6) / g
    )
    inner = zero + 32 + 24 + _WORKERS * worker + reduction
    return np.asarray(61 + 14 + 25 + float_partials + np.asarray(groups) * inner)


def _slic_row(m: Array, zeroes: bool, stride: int) -> Array:
    if stride == 2:
        return np.where(m < 3, 13.0, 15.0 + 2 * (m - 3))
    few = (
        13 + np.where(m > 1, m, 0)
        if zeroes
        else np.where(m == 1, 13.0, 7 + 1 + (m - 1) + 2 + (4 - m) + 2 + (m - 1) + 3)
    )
    return np.where(m < 5, few, 15.0 + (m - 5))


def slic(
    half_partials: bool,
    rows: Sizes,
    width: Sizes,
    sub_kernels: Sizes,
    channels_per_group: int,
    stride: int = 1,
    groups: Sizes = 1,
) -> Array:
    """One vertex for windows of 1x4 weights, in float16: for convolutions with few channels per group.

    ``sub_kernels`` is the number of 1x4 windows that cover the kernel, ``groups`` counts blocks of groups.
    """
    blocks = {4: 1, 2: 2, 1: 4}[channels_per_group]
    load = 34 if blocks == 1 else 9 + 6 + 6 * {2: 12, 4: 10}[blocks] + 6 + 16
    passes = 1 if half_partials else 2
    wide = np.asarray(width, np.float64)
    rows_each = ceil_div(rows, _WORKERS)

    def worker(zeroes: bool) -> Array:
        row = 10 + (1 if zeroes else 0) + (0 if half_partials else 3) + passes * _slic_row(wide, zeroes, stride)
        return 17 + rows_each * (row - (0 if half_partials else passes))

    windows = np.asarray(sub_kernels, np.float64)
    work = _WORKERS * (worker(True) + (windows - 1) * worker(False)) + windows * (load + 20) + 6 * (windows - 1) + 1
    return np.asarray(28 + np.asarray(groups) * (15 + work))


def outer_product(half_inputs: bool, width: Sizes, channels: Sizes, groups: Sizes = 1) -> Array:
    """One vertex that multiplies a column by a row: products with one input channel.

    >>> float(outer_product(False, 6, 16))
    282.0
    """
    c = np.asarray(channels, np.float64)
    if half_inputs:
        each = np.where((c >= 12) & (c % 4 == 0), 6 + (c - 12) / 4, 10 + 2.5 * c)
        start = 10
    else:
        each = np.where((c >= 6) & (c % 2 == 0), 6 + (c - 6) / 2, 10 + 2 * c)
        start = 11
    worker = 25 + np.asarray(groups) * (start + ceil_div(width, _WORKERS) * each)
    return np.asarray(_WORKERS * worker)


def reduce_partials(
    outputs: Sizes,
    depth: Sizes,
    half_output: bool,
    half_partials: bool,
    single_input: bool = True,
    interleaved: bool = False,
) -> Array:
    """Add up the partial results of several tiles for some outputs.

    ``single_input`` is the fast vertex that adds onto the contiguous partial results of one tensor: its ``depth`` does
    not count the first of them.

    >>> float(reduce_partials(256, 4, half_output=True, half_partials=False))
    1143.0
    """
    width = 8 if half_partials else 4
    values, d = np.asarray(outputs, np.float64), np.asarray(depth, np.float64)
    store = (9 if half_partials else 7) + (0 if half_output else 1)
    if single_input:
        loops = np.ceil(np.ceil(values / width) / _WORKERS)
        return np.asarray(33 + _WORKERS * (20 + ((1 if interleaved else 2) * d + store) * loops))
    loops = np.ceil(np.floor(values / width) / _WORKERS)
    rest = np.where(values % width > 0, 2 * d + (11 if half_output else 13), 0)
    return np.asarray(_WORKERS * (32 + (3 * d + store - 1) * loops + rest))


def cast_partials(outputs: Sizes, half_output: bool, half_partials: bool) -> Array:
    """Change the type of results that need no sum."""
    share = ceil_div(outputs, _WORKERS)
    vectors = np.maximum(np.ceil(share / (4 if half_partials else 2)), np.ceil(share / (4 if half_output else 2)))
    return np.asarray(_WORKERS * (26 + vectors))


def reduction_stages(depth: int) -> list[int]:
    """How many partial results each stage adds: more stages need fewer messages.

    >>> reduction_stages(1), reduction_stages(8), reduction_stages(16), reduction_stages(128)
    ([], [8], [4, 4], [6, 5, 5])
    """
    if depth <= 1:
        return []
    stages = 1 if depth < 16 else 2 if depth < 125 else 3
    sizes = []
    left = depth
    for stage in range(stages, 0, -1):
        step = int(np.ceil(round(left ** (1 / stage), 9)))
        sizes.append(step)
        left = -(-left // step)
    return sizes
