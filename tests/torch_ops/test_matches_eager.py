"""Every row of every table, compiled, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
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
TOGETHER = 8


def groups() -> Iterator[Any]:
    """Differentiable rows of one table, some at a time."""
    for table, rows in TABLES.items():
        differentiable = [row for row in rows if row.grad]
        for start in range(0, len(differentiable), TOGETHER):
            group = differentiable[start : start + TOGETHER]
            yield pytest.param(group, id=f"{table}-{group[0].name} to {group[-1].name}")


@pytest.mark.parametrize("sample", ROWS)
def test_inference_matches_eager(sample: Sample) -> None:
    check_inference(sample)


@pytest.mark.parametrize("samples", groups())
def test_training_matches_eager(samples: list[Sample]) -> None:
    check_training(samples)


def test_names_are_unique() -> None:
    names = [param.id for param in ROWS]
    assert len(set(names)) == len(names)


def alternating(*functions: Any) -> Any:
    """Makes the first function, then the second: what a defect of the compiled program would look like."""
    remaining = list(functions)
    return lambda: remaining.pop(0)


@pytest.mark.parametrize("wrong", [lambda x: x * 1.01, lambda x: x.detach() * 2 - x])
def test_the_comparison_notices_a_difference(wrong: Any) -> None:
    inputs = (torch.ones(3),)
    right = torch.clone
    with pytest.raises(AssertionError, match="not close"):
        check_training([Sample("x", alternating(wrong, right), inputs, True)])
    if wrong(torch.ones(1)) != 1:
        with pytest.raises(AssertionError, match="not close"):
            check_inference(Sample("x", alternating(wrong, right), inputs, True))
