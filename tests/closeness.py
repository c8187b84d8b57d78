"""How close two computations of the same numbers must be, on whatever processor the tests run.

Only the same code on the same shapes gives the same bits. Anything else may add the same terms in another order: wider
vector registers, more threads, one product for several micro-batches instead of one for each, a compiled loop instead
of a library. The bound follows from what differs then:

- The type. Each addition rounds its result by at most half of ``eps`` times the result.
- The size of the sums. Rounding goes up as often as down, so the errors of ``terms`` additions grow like
  ``sqrt(terms)``, not like ``terms``.
- The values. Partial sums are as large as the largest results, and their errors stay when they cancel out: an element
  that is nearly zero has the same absolute error as the largest one of its tensor. So the bound is the same for a whole
  tensor, scaled to its largest absolute value.
- The length of the computation. Every layer, and every update of the weights, takes the errors of the one before and
  adds its own: ``steps`` times the bound.

``SAFETY`` covers what this model leaves out: both sides round, and functions between the sums enlarge errors a little.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils import _pytree as pytree

SAFETY = 4.0


def largest_of(tensor: torch.Tensor) -> float:
    """The largest finite absolute value.

    >>> largest_of(torch.tensor([1.0, -2.0, math.inf]))
    2.0
    """
    return tensor.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().item() if tensor.numel() else 0.0


def bound_of_sums(
    expected: torch.Tensor, terms: int, steps: int = 1, scale: float = 0.0, dtype: torch.dtype | None = None
) -> float:
    """The largest difference that the order of additions explains.

    >>> bound_of_sums(torch.tensor([1e-9, -2.0]), terms=64) / torch.finfo(torch.float32).eps
    64.0
    """
    eps = torch.finfo(dtype or expected.dtype).eps
    return SAFETY * eps * math.sqrt(terms) * steps * max(scale, largest_of(expected))


def assert_close_sums(
    given: Any,
    expected: Any,
    *,
    terms: int,
    steps: int = 1,
    scale: float = 0.0,
    dtype: torch.dtype | None = None,
) -> None:
    """Floating-point tensors, in any structure, are equal but for the order of additions; all else is equal.

    Args:
        given: Tensors and numbers in tuples, lists and dictionaries.
        expected: The same structure.
        terms: Terms of the largest sum: features of a layer, rows of all batches in the gradient of an update.
        steps: Sums that follow one another: layers of a forward pass, updates of a training.
        scale: Size of the terms, for results that are small because they cancel out. Otherwise the largest
            absolute value of each expected tensor.
        dtype: The type that values were rounded to on the way, if it is coarser than that of the results. Kernels add
            short types up in float32 and round each result once: ``terms`` is 1 then, and ``steps`` counts roundings.

    >>> assert_close_sums([torch.tensor([0.1 + 0.2])], [torch.tensor([0.3])], terms=2)
    >>> assert_close_sums(torch.tensor([1.001]), torch.tensor([1.0]), terms=8)
    Traceback (most recent call last):
    AssertionError: ...
    """
    leaves, structure = pytree.tree_flatten_with_path(given)
    wanted, wanted_structure = pytree.tree_flatten(expected)
    assert structure == wanted_structure
    for (path, left), right in zip(leaves, wanted, strict=True):
        if isinstance(right, (torch.Tensor, float)):
            _assert_close(pytree.keystr(path), _as_tensor(left), _as_tensor(right), (terms, steps, scale, dtype))
        else:
            assert left == right, pytree.keystr(path)


def _as_tensor(value: torch.Tensor | float) -> torch.Tensor:
    """Numbers of Python were read from tensors: they have the precision of those."""
    if isinstance(value, torch.Tensor):
        return value.detach().as_subclass(torch.Tensor)
    return torch.tensor(value, dtype=torch.float32)


def _assert_close(
    name: str,
    given: torch.Tensor,
    expected: torch.Tensor,
    size: tuple[int, int, float, torch.dtype | None],
) -> None:
    rounded = expected.is_floating_point() or expected.is_complex()
    bound = bound_of_sums(expected, *size) if rounded else 0
    torch.testing.assert_close(
        given, expected, rtol=0, atol=bound, equal_nan=True, msg=lambda text: f"{name or 'value'}: {text}"
    )
