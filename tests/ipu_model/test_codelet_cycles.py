"""The cycles of codelets equal published values: see the fact sheet of the IPU Model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poptorch.ipu_model.cycles import (
    copying,
    elementwise,
    loops,
    nonlinear,
    pooling,
    randomness,
    reductions,
    scaled_add,
    slices,
)

HALF, FLOAT, INT = torch.float16, torch.float32, torch.int32


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (elementwise.unary("relu", 1200, HALF), 1022),
        (elementwise.unary("exp", 1200, HALF), 1418),
        (elementwise.unary("tanh", 1200, HALF), 1322),
        (elementwise.unary("sigmoid", 1200, FLOAT), 7322),
        (elementwise.unary("sqrt", 1200, HALF), 7022),
        (elementwise.unary("gelu_erf", 1200, HALF), 19322),
        (elementwise.binary("add", 1200, HALF), 1067),
        (elementwise.binary("add", 1200, FLOAT), 1985),
        (elementwise.binary("divide", 1200, HALF), 6467),
        (elementwise.binary("add", 1200, HALF, in_place=True), 1259),
        (elementwise.scalar("multiply", 1200, HALF), 731),
        (elementwise.cast(1200, FLOAT, HALF), 846),
        (elementwise.cast(1200, HALF, FLOAT), 840),
        (scaled_add.scaled_add(1200, HALF, HALF), 1089),
        (nonlinear.nonlinearity("gelu_tanh", 1200, HALF), 1701),
        (nonlinear.nonlinearity("gelu_tanh", 1200, FLOAT), 6225),
        (reductions.strided(16, 32, HALF, HALF), 248),
        (reductions.strided(16, 32, FLOAT, FLOAT), 432),
        (slices.multi_slice(64, 3, 19, HALF), 2586),
        (slices.multi_update_add(64, 3, 19, HALF), 2700),
    ],
)
def test_golden_values(given: float, expected: float) -> None:
    assert given == expected


@pytest.mark.parametrize(("elements", "measured"), [(64, 375), (128, 467), (256, 665), (512, 1043)])
def test_scaled_add_is_a_fixed_cost_away_from_the_measurement(elements: int, measured: int) -> None:
    assert 96 <= measured - scaled_add.scaled_add(elements, FLOAT, FLOAT) <= 98


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # 17 + out * (12 + partials / 2) for rows; 17 + 64 bits a cycle for one result
        (reductions.contiguous(64, 4, FLOAT), 17 + 4 * (12 + 32)),
        (reductions.scalar(1024, HALF, FLOAT), 17 + 256),
        (reductions.scalar(1024, HALF, HALF), 22 + 256),
        (reductions.strided(16, 8, HALF, FLOAT, "log_add"), 16 + 2 * (3 + 7 + 3 + 13 * 15)),
        (slices.dynamic_slice(600, 3, FLOAT), 25 + 6 * (39 + (24 + 2 * 100 / 2) * 3)),
        (slices.multi_slice(64, 3, 19, HALF, overwrite=True), 2586 - 6),
        (randomness.uniform(1200, FLOAT), 4 + 22 * 6 + 4 * 600),
        (randomness.uniform(1200, INT), 4 + 22 * 6 + 3 * 1200),
        (randomness.truncated_normal(1200, HALF, 1), 4 + 28 * 6 + 17 * 300),
        (randomness.bernoulli(1200, FLOAT), 4 + 23 * 6 + 600),
        (randomness.dropout(1200, HALF), 6 + 24 * 6 + 2 * 300),
        (randomness.SET_SEED, 176),
        (copying.transpose(4, 4, 6, HALF), 7 + 6 * 29),
        (copying.transpose(4, 4, 60, HALF), 7 + 6 * (37 + 4 * 8)),
        (copying.transpose(8, 2, 6, FLOAT), 7 + 6 * (27 + 35 + 3 * 2)),
        (copying.copy(800), 23 + 100),
        (elementwise.vector_inner("add", 8, 480, FLOAT), 13 + 6 * (17 + 7 + 8 * (8 + 2 * 10))),
        (elementwise.vector_inner("add", 16, 96, HALF), 13 + 6 * (26 + 4 + 7 * 2)),
        (elementwise.vector_inner("add", 16, 960, HALF), 13 + 6 * (26 + 5 + 2 * (15 + 2 * 9))),
        (elementwise.vector_inner("add", 12, 720, HALF), 13 + 6 * (34 + 3 * (13 + 2 * 4))),
        (elementwise.vector_inner("multiply", 12, 720, HALF), 13 + 6 * 24 + 6 * (32 + 3 * (9 + 10))),
        (elementwise.vector_outer("add", 12, 64, HALF), 11 + 6 * (15 + 2 * (7 + 16 * 2))),
        (elementwise.fill(1200, HALF), 26 + 300),
        (elementwise.select(1200, FLOAT), 6 * (5 + 6 + 5 * 200)),
        (elementwise.clamp(1200, HALF), 6 * (5 + 6 + 2 * 50)),
        (elementwise.one_hot(10, HALF), 11 + 740),
        (elementwise.fused(1200, 4, HALF), 20 + 1200),
        (nonlinear.arg_max(1200), 9 + 6 * (30 + 3 * 199)),
        (nonlinear.nonlinearity_gradient("gelu_tanh", 1200, HALF), 9 + 6 * (24 + 49 * 5 + 7)),
        (loops.binary_loop("divide", INT).cycles, 277),
        (loops.binary_loop("remainder", torch.uint8).cycles, 282),
    ],
)
def test_formulas(given: float, expected: float) -> None:
    assert given == expected


GROWING: dict[str, Callable[[int], float]] = {
    "unary": lambda n: elementwise.unary("tanh", n, HALF),
    "binary": lambda n: elementwise.binary("add", n, FLOAT),
    "scalar": lambda n: elementwise.scalar("multiply", n, HALF),
    "cast": lambda n: elementwise.cast(n, FLOAT, HALF),
    "select": lambda n: elementwise.select(n, HALF),
    "sum": lambda n: reductions.tile(n, 8, HALF, "add", rows=True),
    "columns": lambda n: reductions.tile(8, n, FLOAT, "add", rows=False),
    "lookup": lambda n: slices.multi_slice(n, 4, 4, HALF),
    "pool": lambda n: pooling.pooling(n, 9, 16, HALF, "max"),
    "random": lambda n: randomness.uniform(n, HALF),
    "zero": lambda n: copying.zero(n, HALF),
    "sort": lambda n: nonlinear.heap_sort(n),
}


@pytest.mark.parametrize("name", GROWING)
@given(small=st.integers(1, 5000), more=st.integers(0, 5000))
def test_more_elements_never_cost_less(name: str, small: int, more: int) -> None:
    assert GROWING[name](small) <= GROWING[name](small + more)
