"""Every row of every table, compiled, against eager PyTorch."""

from __future__ import annotations

import pytest
from op_samples import Sample, check_inference, check_training
from op_tables import (
    activations,
    blas,
    convolutions,
    creation,
    further,
    indexing,
    layers,
    losses,
    pointwise,
    pooling,
    reductions,
    types,
    views,
    writing,
)

TABLES = {
    module.__name__.rpartition(".")[2]: module.ROWS
    for module in (
        creation, views, indexing, writing, pointwise, reductions, blas, convolutions, pooling, activations, layers,
        losses, types, further,
    )
}  # fmt: skip
ROWS = [pytest.param(row, id=f"{table}-{row.name}") for table, rows in TABLES.items() for row in rows]
DIFFERENTIABLE = [param for param in ROWS if param.values[0].grad]


@pytest.mark.parametrize("sample", ROWS)
def test_inference_matches_eager(sample: Sample) -> None:
    check_inference(sample)


@pytest.mark.parametrize("sample", DIFFERENTIABLE)
def test_training_matches_eager(sample: Sample) -> None:
    check_training(sample)


def test_names_are_unique() -> None:
    names = [param.id for param in ROWS]
    assert len(set(names)) == len(names)
