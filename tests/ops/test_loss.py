"""``identity_loss``: the reduction, and the mark."""

from __future__ import annotations

import pytest
import torch

import poptorch
from closeness import assert_close_sums
from poptorch import ambient

X = torch.tensor([[1.0, 2.0], [3.0, 6.0]])


@pytest.mark.parametrize(("reduction", "value"), [("sum", 12.0), ("mean", 3.0), ("none", X)])
def test_reductions(reduction: str, value: object) -> None:
    assert_close_sums(poptorch.identity_loss(X, reduction), torch.as_tensor(value), terms=8)


@pytest.mark.parametrize("reduction", ["max", "", None, 1])
def test_other_reductions_are_refused(reduction: object) -> None:
    with pytest.raises(AssertionError, match="Unsupported reduction type!"):
        poptorch.identity_loss(X, reduction)


def test_the_reduction_is_required() -> None:
    with pytest.raises(TypeError):
        poptorch.identity_loss(X)


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_the_result_is_marked_and_is_a_value_of_its_own(reduction: str) -> None:
    context = ambient.CaptureContext(training=True)
    with ambient.capturing(context):
        value = poptorch.identity_loss(X, reduction)
    (mark,) = context.losses
    assert mark.value is value
    assert mark.kind == "identity_loss"
    assert value is not X


def test_a_tensor_is_required() -> None:
    with pytest.raises(poptorch.Error, match=r"identity_loss.*is not supported"):
        poptorch.identity_loss(1.0, "sum")
