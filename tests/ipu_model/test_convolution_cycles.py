"""Cycles of matrix vertices against values that were computed from, or measured against, the public formulas."""

from __future__ import annotations

import numpy as np
import pytest

from poptorch.ipu_model.architecture import architecture
from poptorch.ipu_model.cycles.convolution import (
    MatrixUnit,
    Repeats,
    Windows,
    cast_partials,
    dot_product,
    horizontal_mac,
    matrix_1x1,
    matrix_nx1,
    matrix_unit,
    outer_product,
    reduce_partials,
    reduction_stages,
    slic,
    vertical_mac,
    zero_partials,
)

HALF = MatrixUnit(True, True, 16)
MIXED = MatrixUnit(True, False, 8)
FLOAT = MatrixUnit(False, False, 16)

MEASURED = {16: 402, 32: 461, 64: 584, 128: 845, 256: 1352, 512: 2381, 1024: 4424, 1536: 6476, 2048: 8525}
"""Tile cycles of [N, 16] x [16, 16] in float16, measured on a Bow IPU."""

TERAFLOPS = {
    16: 55.49, 32: 96.71, 64: 152.80, 128: 211.12, 256: 264.01, 512: 299.78, 1024: 322.73, 1536: 330.70, 2048: 334.94
}  # fmt: skip


@pytest.mark.parametrize("rows", MEASURED)
def test_products_take_as_long_as_they_were_measured(rows):
    predicted = float(matrix_1x1(HALF, rows))
    assert predicted == pytest.approx(MEASURED[rows], rel=0.02)
    bow = architecture("bow")
    assert 2 * rows * 256 * bow.tiles * bow.clock / predicted / 1e12 == pytest.approx(TERAFLOPS[rows], rel=0.02)


@pytest.mark.parametrize(
    ("unit", "rows", "inner", "outer", "outputs", "cycles"),
    [
        (HALF, 1024, 1, 1, 16, 4417),
        (HALF, 64, 1, 1, 16, 577),
        (HALF, 100, 4, 2, 16, 5091),
        (MIXED, 100, 4, 2, 16, 9305),
        (MIXED, 100, 4, 2, 8, 4835),
        (FLOAT, 100, 4, 2, 16, 10071),
        (HALF, 12, 8, 4, 16, 10339),
        (FLOAT, 12, 8, 4, 16, 12739),
    ],
)
def test_matrix_unit_1x1(unit, rows, inner, outer, outputs, cycles):
    assert float(matrix_1x1(unit, rows, Repeats(inner, outer), outputs)) == cycles


@pytest.mark.parametrize(
    ("unit", "shape", "at_once", "inner", "outer", "outputs", "cycles", "zeroing"),
    [
        (HALF, (1, 4, 7, 3, 3), 1, 4, 2, 16, 39521, 516),
        (HALF, (1, 4, 7, 3, 3), 2, 4, 2, 16, 27985, 516),
        (MIXED, (1, 4, 7, 3, 3), 1, 4, 2, 8, 36779, 288),
        (HALF, (2, 7, 7, 3, 3), 1, 2, 1, 16, 16562, 816),
        (FLOAT, (1, 4, 7, 3, 3), 1, 4, 2, 16, 48155, 516),
    ],
)
def test_matrix_unit_nx1(unit, shape, at_once, inner, outer, outputs, cycles, zeroing):
    batch, height, width, kernel_rows, kernel_columns = shape
    windows, repeats = Windows(batch * height, width, kernel_rows, kernel_columns), Repeats(inner, outer)
    found = matrix_nx1(unit, windows, at_once, repeats, outputs)
    assert float(found) == cycles
    assert float(zero_partials(batch * height * width, repeats, outputs)) == zeroing


@pytest.mark.parametrize(
    ("outputs", "depth", "float_output", "float_partials", "single", "interleaved", "cycles"),
    [
        (256, 4, 0, 1, 1, 0, 1143),
        (256, 4, 0, 1, 1, 1, 879),
        (256, 4, 0, 1, 0, 0, 1380),
        (256, 8, 0, 0, 1, 0, 1053),
        (256, 8, 0, 0, 0, 0, 1344),
        (1000, 3, 1, 1, 0, 0, 4224),
    ],
)
def test_sums_of_partial_results(outputs, depth, float_output, float_partials, single, interleaved, cycles):
    found = reduce_partials(outputs, depth, not float_output, not float_partials, bool(single), bool(interleaved))
    assert float(found) == cycles


def test_arrays_give_the_same_as_numbers():
    rows = np.array([1.0, 2, 5, 7, 100])
    twice = Repeats(2, 3)
    assert matrix_1x1(HALF, rows, twice).tolist() == [float(matrix_1x1(HALF, it, twice)) for it in rows]
    found = matrix_nx1(HALF, Windows(rows, 7, 3, 3))
    assert found.tolist() == [float(matrix_nx1(HALF, Windows(it, 7, 3, 3))) for it in rows]


def test_half_used_units_and_chips():
    assert matrix_unit(architecture("mk1"), True, True).units == 8
    assert matrix_unit(architecture("bow"), True, True) == HALF
    assert matrix_unit(architecture("bow"), True, False) == MIXED
    assert matrix_unit(architecture("bow"), False, False, 8).units == 8
    assert float(matrix_1x1(MatrixUnit(True, True, 8), 64, outputs_per_group=16)) > float(matrix_1x1(HALF, 64))


def test_vertices_without_the_matrix_unit_grow_with_their_work():
    assert dot_product(16, half_inputs=True, half_partials=False) == 3 + 4 + 4 - 1
    assert dot_product(3, half_inputs=True, half_partials=False) == 3 + 4 + 1 + 6 - 1
    for vertex in (
        lambda n: horizontal_mac(True, True, n, 1, 16, 4),
        lambda n: vertical_mac(True, Windows(n, 7, 3, 3)),
        lambda n: vertical_mac(False, Windows(n, 7, 3, 3), groups_at_once=4),
        lambda n: slic(True, n, 7, 3, 4),
        lambda n: slic(False, n, 7, 3, 1, stride=2),
        lambda n: outer_product(True, n, 16),
        lambda n: outer_product(False, n, 7),
        lambda n: cast_partials(n, half_output=True, half_partials=False),
    ):
        cycles = [float(vertex(n)) for n in (6, 48, 96, 480)]
        assert cycles == sorted(set(cycles))


def test_deep_sums_have_stages():
    assert [len(reduction_stages(d)) for d in (1, 2, 15, 16, 124, 125, 1000)] == [0, 1, 1, 2, 2, 3, 3]
    assert all(np.prod(reduction_stages(d)) >= d for d in range(2, 300))
