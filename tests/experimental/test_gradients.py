"""Gradients of arguments: after a call, leaf tensors have what eager mode would give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import poptorch
from poptorch.experimental import IPUContext, IPUScope


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape).to(dtype).requires_grad_()


def returned(x: torch.Tensor) -> Any:
    (x * x).sum().backward()
    return x.grad


def product(x: torch.Tensor, y: torch.Tensor) -> Any:
    loss = (x * y).sum()
    loss.backward()
    return loss


def cleared(x: torch.Tensor) -> Any:
    x.grad = None
    (x * x).sum().backward()
    return x.grad * 2


def zeroed(x: torch.Tensor) -> Any:
    if x.grad is not None:
        x.grad.zero_()
    (x**3).sum().backward()
    return x.grad


def only_cleared(x: torch.Tensor) -> Any:
    x.grad = None
    return x * 2


def not_accumulated(x: torch.Tensor) -> Any:
    return torch.autograd.grad((x * x).sum(), x)


def twice(x: torch.Tensor) -> Any:
    (x * x).sum().backward()
    (x**3).sum().backward()
    return x - 0.1 * x.grad


def inner(x: torch.Tensor, w: torch.Tensor) -> Any:
    out = F.linear(x, w)
    out.retain_grad()
    out.square().sum().backward()
    return out.grad, w.grad


def nothing(x: torch.Tensor) -> None:
    (x * x).sum().backward()


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "returned": (returned, (leaf(2, 3),)),
    "two leaves": (product, (leaf(2, 3), leaf(3))),
    "cleared first": (cleared, (leaf(2, 3),)),
    "zeroed first": (zeroed, (leaf(2, 3),)),
    "only cleared": (only_cleared, (leaf(2, 3),)),
    "not accumulated": (not_accumulated, (leaf(2, 3),)),
    "two backward passes": (twice, (leaf(2, 3),)),
    "beside a tensor without": (inner, (torch.ones(2, 3), leaf(4, 3))),
    "nothing returned": (nothing, (leaf(4),)),
    "of no dimension": (returned, (leaf(),)),
    "of no elements": (returned, (leaf(0, 3),)),
    "half": (returned, (leaf(3, dtype=torch.float16),)),
}


@pytest.mark.parametrize("name", CASES)
def test_leaves_have_the_gradients_of_eager_mode(name: str) -> None:
    function, given = CASES[name]
    own, others = ([t.detach().clone().requires_grad_(t.requires_grad) for t in given] for _ in range(2))
    on_ipu = IPUContext(function)
    for _ in range(3):
        results, expected = on_ipu(*own), function(*others)
        torch.testing.assert_close(results, pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, expected))
        for tensor, other in zip(own, others, strict=True):
            assert (tensor.grad is None) == (other.grad is None)
            torch.testing.assert_close(tensor.grad, other.grad)


def test_a_gradient_is_added_in_place() -> None:
    x = leaf(3)
    x.grad = before = torch.ones(3)
    IPUContext(nothing)(x)
    assert x.grad is before
    torch.testing.assert_close(before, 1 + 2 * x.detach())


def test_a_leaf_given_twice_gets_the_sum() -> None:
    x = leaf(3)
    on_ipu = IPUContext(lambda a, b: (a * b * b).sum().backward())
    for number in (1, 2):
        on_ipu(x, x)
        torch.testing.assert_close(x.grad, number * 3 * x.detach() ** 2)
    with pytest.raises(poptorch.Error, match="given for several arguments"):
        on_ipu(x, leaf(3))


def test_types_of_the_host_are_kept() -> None:
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    IPUContext(nothing)(x)
    assert x.grad is not None
    assert x.grad.dtype is torch.float64


def test_tensors_that_are_no_leaves_get_none() -> None:
    x = leaf(3)
    inner = x * 2
    gradient = IPUContext(returned)(inner)
    torch.testing.assert_close(gradient, 4 * x.detach())
    assert x.grad is None


def test_parameters_of_the_named_module_stay_as_they_are() -> None:
    layer, x = nn.Linear(3, 2), leaf(1, 3)
    IPUContext(lambda x: layer(x).sum().backward(), model=layer)(x)
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.detach().sum(0, keepdim=True))


def test_state_goes_on_when_gradients_become_inputs() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

    counter, x = Counter(), leaf(1)

    def function(x: torch.Tensor) -> torch.Tensor:
        counter.count.add_(1)
        (x * x).sum().backward()
        return counter.count

    on_ipu = IPUContext(function, model=counter)
    assert [on_ipu(x).item() for _ in range(4)] == [1, 2, 3, 4]
    torch.testing.assert_close(x.grad, 8 * x.detach())


def test_rows_of_several_micro_batches() -> None:
    x = torch.arange(4.0).reshape(4, 1).requires_grad_()
    options = poptorch.Options().deviceIterations(2)
    on_ipu = IPUContext(nothing, options=options)
    for number in (2, 4):
        on_ipu(x)
        torch.testing.assert_close(x.grad, number * x.detach())
    with pytest.raises(poptorch.Error, match="the output mode must be All"):
        IPUContext(nothing, options=poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.Final))(x)


def test_blocks_too() -> None:
    x, plain = leaf(3), torch.full((3,), 2.0)
    with IPUScope([x, plain]) as ipu:
        loss = (x.to("ipu") ** 2 * plain.to("ipu")).sum()
        loss.backward()
        ipu.outputs(loss)
    assert x.grad is None
    for number in (1, 2):
        ipu(x, plain)
        torch.testing.assert_close(x.grad, number * 4 * x.detach())
    assert ipu(torch.ones(3), plain).item() == 6
    assert plain.grad is None
