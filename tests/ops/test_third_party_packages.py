"""The real ``torch_scatter`` and ``torch_spline_conv`` in models, where they are installed.

They come as sources that take minutes to build (``pip install --no-build-isolation torch_scatter torch_spline_conv``),
so the usual tests make do with their schemas (``test_third_party.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums

pytestmark = pytest.mark.slow

torch_scatter = pytest.importorskip("torch_scatter", reason="torch_scatter is not installed")
splines = pytest.importorskip("torch_spline_conv", reason="torch_spline_conv is not installed")


class Weighted(nn.Module):
    """``function`` of weighted values; in training the sum of the sines of its first result."""

    def __init__(self, function: Callable[..., Any], shape: tuple[int, ...], train: bool) -> None:
        super().__init__()
        self.function, self.train_ = function, train
        self.weight = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1)).abs() + 0.1)

    def forward(self, *inputs: torch.Tensor) -> Any:
        results = self.function(self.weight, *inputs)
        first = results[0] if isinstance(results, tuple) else results
        return poptorch.identity_loss(first.sin(), "sum") if self.train_ else results


def check(function: Callable[..., Any], shape: tuple[int, ...], *inputs: torch.Tensor) -> None:
    """Values and gradients equal those of the package's own kernels."""
    with torch.no_grad():
        expected = Weighted(function, shape, train=False)(*inputs)
    found = poptorch.inferenceModel(Weighted(function, shape, train=False))(*inputs)
    for a, b in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected), strict=True):
        assert_close_sums(a.to(b.dtype), b, terms=math.prod(shape))  # indices have 32 bits on the device
    model, reference = Weighted(function, shape, train=True), Weighted(function, shape, train=True)
    poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))(*inputs)
    reference(*inputs).backward()
    assert reference.weight.grad is not None
    trained = reference.weight.detach() - 0.1 * reference.weight.grad
    # The standard deviation of one value has no gradient: NaN here as there.
    assert_close_sums(model.weight, trained, terms=math.prod(shape), steps=2)


SRC, INDEX = torch.linspace(0.3, 2.0, 18).view(6, 3).flip(1), torch.tensor([0, 1, 0, 2, 1, 0])


@pytest.mark.parametrize("index", [INDEX, INDEX[:, None].expand(6, 3).contiguous()], ids=["1-D", "2-D"])
@pytest.mark.parametrize("reduce", ["sum", "add", "mean", "max", "min", "mul"])
def test_scatter(reduce: str, index: torch.Tensor) -> None:
    check(lambda w, x, i: torch_scatter.scatter(x * w, i, 0, dim_size=4, reduce=reduce), (6, 3), SRC, index)


@pytest.mark.parametrize(
    "name", ["scatter_sum", "scatter_add", "scatter_mean", "scatter_max", "scatter_min", "scatter_mul"]
)
@pytest.mark.parametrize("with_out", [False, True])
def test_scatter_functions(name: str, with_out: bool) -> None:
    def function(weight: torch.Tensor, x: torch.Tensor, index: torch.Tensor) -> Any:
        target = {"out": torch.full((4, 3), 0.5)} if with_out else {"dim_size": 4}
        return getattr(torch_scatter, name)(x * weight, index, 0, **target)

    check(function, (6, 3), SRC, INDEX)


@pytest.mark.parametrize("name", ["scatter_softmax", "scatter_log_softmax", "scatter_logsumexp", "scatter_std"])
def test_composites(name: str) -> None:
    function = getattr(torch_scatter.composite, name)
    size = 3 if name == "scatter_logsumexp" else 4  # of an empty group it is minus infinity, whose sine has no value
    check(lambda w, x, i: function(x * w, i, 0, dim_size=size), (6, 3), SRC, INDEX)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_splines(degree: int) -> None:
    def function(weight: torch.Tensor, x: torch.Tensor, pseudo: torch.Tensor) -> torch.Tensor:
        size, is_open = torch.tensor([5, 4]), torch.tensor([1, 0], dtype=torch.uint8)
        basis, index = splines.spline_basis(pseudo, size, is_open, degree)
        return splines.spline_weighting(x, weight, basis, index)

    check(function, (20, 3, 4), torch.randn(7, 3), torch.rand(7, 2))


def test_a_convolution_of_splines() -> None:
    def function(weight: torch.Tensor, x: torch.Tensor, edges: torch.Tensor, pseudo: torch.Tensor) -> torch.Tensor:
        size, is_open = torch.tensor([5, 5]), torch.tensor([1, 1], dtype=torch.uint8)
        return splines.spline_conv(x, edges, pseudo, weight, size, is_open, 2)

    edges = torch.tensor([[0, 1, 1, 2, 2, 3, 0], [1, 0, 2, 1, 3, 2, 3]])
    check(function, (25, 3, 4), torch.randn(4, 3), edges, torch.rand(7, 2))
