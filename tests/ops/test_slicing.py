"""``dynamic_slice`` and ``dynamic_update``."""

from __future__ import annotations

import pytest
import torch

import poptorch

X = torch.arange(24.0).view(4, 6)


def _start(value: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor([value], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("dim", [1, -1])
def test_a_slice_starts_where_the_tensor_says(capture, dtype: torch.dtype, dim: int) -> None:
    graph = capture(lambda x, s: poptorch.dynamic_slice(x, dim, s, 3, 1), X, _start(0, dtype))
    for start in range(4):
        assert torch.equal(graph(X, _start(start, dtype)), X[:, start : start + 3])
    # beyond the end it goes on at the beginning
    assert torch.equal(graph(X, _start(5, dtype)), X[:, [5, 0, 1]])


def test_steps() -> None:
    assert poptorch.dynamic_slice(torch.arange(8), 0, _start(1), 4, 2).tolist() == [1, 3]
    assert poptorch.dynamic_slice(torch.arange(6), 0, _start(1), 3, 2).tolist() == [1, 3]


def test_gradients(capture) -> None:
    def step(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        return torch.autograd.grad(poptorch.dynamic_slice(x, 0, s, 2, 1).sum(), x)[0]

    assert capture(step, torch.ones(4), _start(0))(torch.ones(4), _start(1)).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ((X, 1.0, _start(0), 3, 1), "Dimension must be an integer."),
        ((X, 1, _start(0), 3.0, 1), "Size must be an integer."),
        ((X, 1, _start(0), 3, "1"), "Step must be an integer."),
        ((X, 1, 0, 3, 1), "Slice start argument to dynamic_slice must be a torch.tensor"),
        ((X, 1, torch.tensor([0.0]), 3, 1), "Expected integer typed start tensor"),
        ((X, 1, torch.tensor([0, 1]), 3, 1), "one element"),
        ((X, 1, _start(0), 0, 1), "The start and end of a slice must be different"),
        ((X, 1, _start(0), -1, 1), "Taking a slice of a tensor with the end less than the start is not supported"),
        ((X, 1, _start(0), 4, 1), r"The size of the slice \(4\) must be a factor of the slicing dimension \(6\)."),
        ((X, 1, _start(0), 3, 0), "Slicing step must be at least 1"),
        (([1], 1, _start(0), 3, 1), "is not supported"),
    ],
)
def test_wrong_slices(arguments: tuple, phrase: str) -> None:
    with pytest.raises(poptorch.Error, match=phrase):
        poptorch.dynamic_slice(*arguments)


def test_update_returns_a_copy(capture) -> None:
    source = -torch.ones(4, 2)
    graph = capture(lambda x, src, s: poptorch.dynamic_update(x, src, 1, s, 2), X, source, _start(0))
    for start in (0, 3, 4):
        expected = X.clone()
        expected[:, start : start + 2] = -1
        assert torch.equal(graph(X, source, _start(start)), expected)
    assert X[0, 0] == 0


def test_update_needs_no_factor_and_has_gradients() -> None:
    x, source = torch.zeros(5, requires_grad=True), torch.ones(3, requires_grad=True)
    y = poptorch.dynamic_update(x, source, 0, _start(1), 3)
    assert y.tolist() == [0, 1, 1, 1, 0]
    for gradient, expected in zip(
        torch.autograd.grad((y * 2).sum(), [x, source]), ([2, 0, 0, 0, 2], [2] * 3), strict=True
    ):
        assert gradient.tolist() == expected


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ((X, 1, 0, _start(0), 2), "Src argument to dynamic_update must be a torch.tensor"),
        ((X, X[0], 0, _start(0), 2), r"input and src tensors must have same dimensionality. \(2\) vs \(1\)"),
        (
            (X.long(), X[:2], 0, _start(0), 2),
            r"input and src tensor must have same dtype. \(torch.int32 vs torch.float32\)",
        ),
        ((X, X[:2], "0", _start(0), 2), "Dimension must be an integer."),
        ((X, X[:2], 0, 0, 2), "Slice start argument to dynamic_update must be a torch.tensor"),
        ((X, X[:2], 0, _start(0), 2.0), "Size must be an integer."),
        ((X, X[:2], 0, _start(0), 0), "The start and end of a slice must be different"),
        ((X, X[:2], 0, _start(0), -2), "Taking a slice of a tensor with the end less than the start is not supported"),
        ((X, X[:2], 0, _start(0), 3), "src has 2 elements"),
        ((None, X[:2], 0, _start(0), 3), "is not supported"),
    ],
)
def test_wrong_updates(arguments: tuple, phrase: str) -> None:
    with pytest.raises(poptorch.Error, match=phrase):
        poptorch.dynamic_update(*arguments)
