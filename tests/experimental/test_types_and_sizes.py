"""Inputs without elements, and operands of different types, give what they give in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import poptorch
from poptorch.experimental import IPUContext, IPUScope

SHAPES = [(0,), (0, 3), (3, 0), (2, 0, 4)]

EMPTY: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: (x.sum(), x.sum(0), x.sum(-1)),
    "product": lambda x: (x.prod(), x.prod(0)),
    "mean": lambda x: (x.mean(), x.mean(-1)),
    "all and any": lambda x: ((x > 0).all(), (x > 0).any(), (x > 0).all(0)),
    "pointwise": lambda x: (x + 1, x * x, x.exp(), torch.where(x > 0, x, -x)),
    "shapes": lambda x: (x.reshape(0, 5), x.unsqueeze(1), x.flip(0), x.repeat(*[2] * x.ndim), x.flatten()),
    "joined": lambda x: (torch.cat([x, x]), torch.stack([x, x]), F.pad(x, (1, 1))),
    "scans": lambda x: (x.cumsum(0), x.softmax(-1), x.sort(-1).values),
    "products": lambda x: x.unsqueeze(-1) @ x.unsqueeze(-2),
    "losses": lambda x: (F.mse_loss(x, x), F.l1_loss(x, x, reduction="sum")),
    "in place": lambda x: x.add_(1),
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_inputs_without_elements(name: str, shape: tuple[int, ...]) -> None:
    given, expected = IPUContext(EMPTY[name])(torch.ones(shape)), EMPTY[name](torch.ones(shape))
    torch.testing.assert_close(given, expected, equal_nan=True)


def test_wrapped_models_refuse_them_and_blocks_do_not() -> None:
    empty = torch.zeros(0, 3)
    with pytest.raises(poptorch.Error, match=r"Zero-sized tensors are unsupported \(Got shape \[0, 3\]\)"):
        poptorch.inferenceModel(torch.nn.ReLU())(empty)
    with IPUScope([empty]) as ipu:
        ipu.outputs((empty.to("ipu").sum(0), empty.to("ipu").prod()))
    total, product = ipu(empty)
    assert torch.equal(total, torch.zeros(3))
    assert product.item() == 1


MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "multiply": torch.mul,
    "divide": torch.div,
    "power": torch.pow,
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "first row": lambda a, b: a + b[0],
    "in place": lambda a, b: a.clone().copy_(b),
    "loss": F.mse_loss,
}
TYPES = [torch.float16, torch.float32, torch.int32, torch.bool]


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("second", TYPES, ids=str)
@pytest.mark.parametrize("first", TYPES, ids=str)
def test_operands_are_promoted_as_by_torch(name: str, first: torch.dtype, second: torch.dtype) -> None:
    a, b = torch.tensor([1.5, 2.5, 3.0]).to(first), torch.tensor([1.0, 3.25, 0.5]).to(second)
    try:
        expected = MIXED[name](a, b)
    except RuntimeError:
        pytest.skip("not possible in eager mode")
    torch.testing.assert_close(IPUContext(MIXED[name])(a, b), expected)


def test_blocks_promote_and_options_decide() -> None:
    half, single = torch.ones(2, dtype=torch.float16), torch.ones(2)
    with IPUScope([half, single]) as ipu:
        ipu.outputs(half.to("ipu") + single.to("ipu"))
    assert ipu(half, single).dtype is torch.float32
    options = poptorch.Options()
    options.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.FloatDowncastToHalf)
    assert IPUContext(torch.add, options=options)(half, single).dtype is torch.float16
    traced = poptorch.Options()
    traced.Jit.traceModel(True)
    assert IPUContext(torch.add, options=traced)(half, single).dtype is torch.float16
