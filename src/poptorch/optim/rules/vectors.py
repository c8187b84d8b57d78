"""Arithmetic on lists of tensors where a factor may be a number of the program or an input to it.

A *scalar* is either a Python float, folded into the program, or a 0-d tensor, read anew each time the program
runs. The functions choose the torch call that needs the fewest passes over memory for each case; none looks
at the value of a tensor, so that all of them can be traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor

Scalar: TypeAlias = "float | Tensor"
Tensors: TypeAlias = Sequence[Tensor]


def scaled(xs: Tensors, factor: Scalar) -> list[Tensor]:
    """``factor * x``; the tensors themselves when the factor is the number one.

    >>> scaled([torch.ones(2)], 3.0)
    [tensor([3., 3.])]
    """
    if _is(factor, 1.0) or not xs:
        return list(xs)
    return list(torch._foreach_mul(list(xs), _typed(factor, xs)))


def scale_(xs: Tensors, factor: Scalar) -> None:
    """``x ← factor * x``."""
    if not _is(factor, 1.0) and xs:
        torch._foreach_mul_(list(xs), _typed(factor, xs))


def axpy_(ys: Tensors, xs: Tensors, factor: Scalar) -> None:
    """``y ← y + factor * x``, the product rounded to y's type.

    >>> total = torch.ones(2)
    >>> axpy_([total], [torch.ones(2)], torch.tensor(0.5))
    >>> total
    tensor([1.5000, 1.5000])
    """
    if not ys:
        return
    if not _same_types(ys, xs):
        torch._foreach_add_(list(ys), cast_like(scaled(xs, factor), ys))
    elif isinstance(factor, Tensor):
        torch._foreach_addcmul_(list(ys), list(xs), [_typed(factor, ys)] * len(ys))
    else:
        torch._foreach_add_(list(ys), list(xs), alpha=factor)


def axpy(ys: Tensors, xs: Tensors, factor: Scalar) -> list[Tensor]:
    """``y + factor * x`` in new tensors of y's type."""
    if not ys:
        return []
    if not _same_types(ys, xs):
        return list(torch._foreach_add(list(ys), cast_like(scaled(xs, factor), ys)))
    if isinstance(factor, Tensor):
        return list(torch._foreach_addcmul(list(ys), list(xs), [_typed(factor, ys)] * len(ys)))
    return list(torch._foreach_add(list(ys), list(xs), alpha=factor))


def average_(averages: Tensors, xs: Tensors, keep: Scalar) -> None:
    """``a ← keep * a + (1 - keep) * x``: a moving average, computed in its own type."""
    if not averages:
        return
    weight = 1.0 - keep
    xs = cast_like(xs, averages)
    if isinstance(weight, Tensor):
        torch._foreach_lerp_(list(averages), xs, [_typed(weight, averages)] * len(xs))
    else:
        torch._foreach_lerp_(list(averages), xs, weight)


def shift_(xs: Tensors, amount: Scalar) -> None:
    """``x ← x + amount``. A tensor goes as a list: torch would read a single one as a number while tracing."""
    if xs:
        torch._foreach_add_(list(xs), _addend(amount, xs))


def shifted(xs: Tensors, amount: Scalar) -> list[Tensor]:
    """``x + amount`` in new tensors.

    >>> shifted([torch.ones(2)], torch.tensor(0.5))
    [tensor([1.5000, 1.5000])]
    """
    return list(torch._foreach_add(list(xs), _addend(amount, xs))) if xs else []


def _addend(amount: Scalar, xs: Tensors) -> Any:
    return [_typed(amount, xs)] * len(xs) if isinstance(amount, Tensor) else amount


def scaled_each(xs: Tensors, factors: Tensor) -> list[Tensor]:
    """``factors[i] * xs[i]`` for a vector of factors."""
    return list(torch._foreach_mul(list(xs), _split(factors, xs)))


def scale_each_(xs: Tensors, factors: Tensor) -> None:
    """``xs[i] ← factors[i] * xs[i]`` for a vector of factors."""
    torch._foreach_mul_(list(xs), _split(factors, xs))


def norms(xs: Tensors) -> Tensor:
    """The Euclidean norm of each tensor, as one float64 vector.

    >>> norms([torch.tensor([3.0, 4.0]), torch.tensor([[2.0]])])
    tensor([5., 2.], dtype=torch.float64)
    """
    # float16 squares overflow early: the sum of squares is built in float32 at least
    wide = [x.float() if x.dtype.itemsize < 4 else x for x in xs]
    return torch.stack([norm.double() for norm in torch._foreach_norm(wide)])


def cast(xs: Tensors, dtype: torch.dtype) -> list[Tensor]:
    """The tensors in ``dtype``; those that have it already are not copied."""
    return [x if x.dtype == dtype else x.to(dtype) for x in xs]


def cast_like(xs: Tensors, ys: Tensors) -> list[Tensor]:
    """Each tensor of ``xs`` in the type of its partner in ``ys``."""
    return [x if x.dtype == y.dtype else x.to(y.dtype) for x, y in zip(xs, ys, strict=True)]


def rounded_to(dtype: torch.dtype, factor: Scalar) -> Scalar:
    """``factor`` as a device scalar of type ``dtype`` would hold it; float32 and wider stay as precise as
    given.

    >>> rounded_to(torch.float16, 1 - 1e-4)
    1.0
    """
    if dtype.itemsize >= 4:
        return factor
    if isinstance(factor, Tensor):
        return factor.to(dtype)
    return float(torch.tensor(factor, dtype=dtype).item())


def scale_rounded_(xs: Tensors, types_of: Tensors, factor: Scalar) -> None:
    """``x ← factor * x`` with the factor held in the type of the matching tensor in ``types_of``."""
    for dtype in dict.fromkeys(t.dtype for t in types_of):
        chosen = [x for x, t in zip(xs, types_of, strict=True) if t.dtype == dtype]
        scale_(chosen, rounded_to(dtype, factor))


def _is(factor: Scalar, value: float) -> bool:
    return not isinstance(factor, Tensor) and factor == value


def _same_types(ys: Tensors, xs: Tensors) -> bool:
    return all(y.dtype == x.dtype for y, x in zip(ys, xs, strict=True))


@overload
def _typed(factor: Tensor, xs: Tensors) -> Tensor: ...
@overload
def _typed(factor: Scalar, xs: Tensors) -> Scalar: ...
def _typed(factor: Scalar, xs: Tensors) -> Scalar:
    """A tensor factor in the type that the kernels work in, so that they do not each convert it again."""
    if not isinstance(factor, Tensor):
        return factor
    return factor.to(torch.float64 if all(x.dtype == torch.float64 for x in xs) else torch.float32)


def _split(factors: Tensor, xs: Tensors) -> list[Tensor]:
    return list(_typed(factors, xs).unbind())
