"""Operators of ``torch_scatter`` and ``torch_spline_conv`` in terms of ATen, so that they can be captured.

These packages bring compiled kernels that know real tensors only. While a model is captured,
:class:`ThirdPartyOps` replaces their calls by the compositions below; nothing happens if the packages are not
installed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from poptorch.errors import createPoptorchError

_PACKAGES = ("torch_scatter", "torch_spline_conv")


class _Active(threading.local):
    modes = 0


_active = _Active()


class ThirdPartyOps(TorchFunctionMode):
    """Replaces calls of known third-party operators by compositions of ATen operators."""

    def __enter__(self) -> ThirdPartyOps:
        if any(package in sys.modules for package in _PACKAGES):
            _see_into_scripts()
        _active.modes += 1
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        _active.modes -= 1
        super().__exit__(*exception)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = _REPLACEMENTS.get(_name_of(func))
        return (replacement or func)(*args, **(kwargs or {}))


def _name_of(func: Any) -> str:
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.name
    return func._qualified_op_name if isinstance(func, torch._ops.OpOverloadPacket) else ""


@cache
def _see_into_scripts() -> None:
    """Run the packages' TorchScript functions as the Python that they were written in, while a model is captured.

    No mode sees what the TorchScript interpreter calls. Outside of a capture, and for all other functions, nothing
    changes.
    """
    original = torch.jit.ScriptFunction.__call__

    def call(script: Any, *args: Any, **kwargs: Any) -> Any:
        if _active.modes and script.qualified_name.removeprefix("__torch__.").startswith(_PACKAGES):
            return script._torchdynamo_inline(*args, **kwargs)
        return original(script, *args, **kwargs)

    torch.jit.ScriptFunction.__call__ = call  # type: ignore[method-assign, assignment]


def _scatter_shape(
    src: torch.Tensor, index: torch.Tensor, dim: int, out: torch.Tensor | None, dim_size: int | None
) -> tuple[torch.Tensor, int, list[int]]:
    """The index in the shape of ``src``, the dimension counted from the front, and the shape of the result."""
    dim = dim % src.dim()
    if index.dim() == 1:
        index = index.view([-1 if d == dim else 1 for d in range(src.dim())])
    while index.dim() < src.dim():
        index = index.unsqueeze(-1)
    shape = list(src.shape)
    if out is not None:
        shape = list(out.shape)
    elif dim_size is not None:
        shape[dim] = dim_size
    else:
        raise createPoptorchError(
            "torch_scatter: dim_size must be given as a constant: the size of the result cannot depend on "
            "the values of the index in a compiled program."
        )
    return index.expand(src.shape).to(torch.int64), dim, shape


def _scatter_mul(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> torch.Tensor:
    index, dim, shape = _scatter_shape(src, index, dim, out, dim_size)
    # A copy of out: it is overwritten below, and the gradient needs what was there before.
    start = src.new_ones(shape) if out is None else out.clone()
    result = start.scatter_reduce(dim, index, src, "prod", include_self=True)
    return result if out is None else out.copy_(result)


def _scatter_extreme(largest: bool) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def extreme(
        src: torch.Tensor,
        index: torch.Tensor,
        dim: int = -1,
        out: torch.Tensor | None = None,
        dim_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        index, dim, shape = _scatter_shape(src, index, dim, out, dim_size)
        size = src.shape[dim]
        values, reduction = src.detach(), "amax" if largest else "amin"
        start = src.new_zeros(shape) if out is None else out.detach()
        best = start.scatter_reduce(dim, index, values, reduction, include_self=out is not None)
        wins = values == best.gather(dim, index)
        if out is not None:  # what was there before stays unless something better comes
            before = start.gather(dim, index)
            wins = wins & (values > before if largest else values < before)
        # The first of several winners; `size` where nothing arrived.
        places = torch.arange(size, device=src.device).view([-1 if d == dim else 1 for d in range(src.dim())])
        candidates = torch.where(wins, places, size)
        nobody = torch.full(shape, size, dtype=torch.int64, device=src.device)
        winner = nobody.scatter_reduce(dim, index, candidates, "amin", include_self=True)
        # Taken from src by position, so that the gradient goes to the winner alone.
        padded = torch.cat([src, src.new_zeros([1 if d == dim else n for d, n in enumerate(src.shape)])], dim)
        result = padded.gather(dim, winner)
        if out is not None:
            result = out.copy_(torch.where(winner < size, result, out))
        return result, winner

    return extreme


def _spline_basis(
    pseudo: torch.Tensor, kernel_size: torch.Tensor, is_open_spline: torch.Tensor, degree: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """B-spline weights (edges, (degree + 1)^dimensions) and the kernel element that each belongs to."""
    if degree not in _SPLINES:
        raise createPoptorchError(f"torch_spline_conv: splines of degree {degree} are not supported; use 1, 2 or 3.")
    basis = pseudo.new_ones(pseudo.shape[0], 1)
    position = torch.zeros(pseudo.shape[0], 1, dtype=torch.int64, device=pseudo.device)
    stride = torch.ones((), dtype=torch.int64, device=pseudo.device)
    for dimension in range(pseudo.shape[1]):
        size = kernel_size[dimension].to(torch.int64)
        scale = size - degree * is_open_spline[dimension].to(torch.int64)
        value = pseudo[:, dimension] * scale
        whole = value.detach().floor()
        weights = torch.stack(_SPLINES[degree](value - whole), 1)  # (edges, degree + 1)
        knots = (whole.to(torch.int64)[:, None] + torch.arange(degree + 1, device=pseudo.device)) % size
        # The first dimension varies fastest.
        basis = (weights[:, :, None] * basis[:, None, :]).flatten(1)
        position = (knots[:, :, None] * stride + position[:, None, :]).flatten(1)
        stride = stride * size
    return basis, position


def _linear(v: torch.Tensor) -> list[torch.Tensor]:
    return [1 - v, v]


def _quadratic(v: torch.Tensor) -> list[torch.Tensor]:
    return [0.5 * v * v - v + 0.5, -v * v + v + 0.5, 0.5 * v * v]


def _cubic(v: torch.Tensor) -> list[torch.Tensor]:
    square, cube = v * v, v * v * v
    return [(1 - v) ** 3 / 6, (3 * cube - 6 * square + 4) / 6, (-3 * cube + 3 * square + 3 * v + 1) / 6, cube / 6]


_SPLINES = {1: _linear, 2: _quadratic, 3: _cubic}


def _spline_weighting(
    x: torch.Tensor, weight: torch.Tensor, basis: torch.Tensor, weight_index: torch.Tensor
) -> torch.Tensor:
    """For each edge the sum over its kernel elements of basis · x @ weight; weight is (elements, in, out)."""
    mixture = F.one_hot(weight_index.to(torch.int64), weight.shape[0]).to(basis.dtype) * basis.unsqueeze(-1)
    return torch.einsum("ek,ei,kio->eo", mixture.sum(1), x, weight)


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "torch_scatter::scatter_mul": _scatter_mul,
    "torch_scatter::scatter_max": _scatter_extreme(largest=True),
    "torch_scatter::scatter_min": _scatter_extreme(largest=False),
    "torch_spline_conv::spline_basis": _spline_basis,
    "torch_spline_conv::spline_weighting": _spline_weighting,
}
