"""What the CPU's kernels say about a call, asked while a model is captured.

Shape inference takes calls that kernels refuse because of their types: ``mask1 - mask2``, a loss with labels of the
wrong type. Without a question in time such a call fails when the program runs, far from the line that is wrong. So each
combination of operation and types is tried once on tiny tensors. Only complaints about types count: tiny tensors may
well have the wrong shape.

Errors of shape inference have words of their own. Where the tensors are small, the call is repeated on real ones, and
the user reads what PyTorch says on the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from poptorch.ops.traits import OpKind, traits_of

_UNASKED = frozenset({
    OpKind.VIEW, OpKind.CREATION, OpKind.HINT, OpKind.HOST, OpKind.CONTROL, OpKind.CUSTOM, OpKind.LINALG,
    OpKind.RECURRENT,
})  # fmt: skip
"""Kinds without a kernel, with side effects, or that look at values."""

_ABOUT_TYPES = re.compile(
    r"not implemented for|not supported|unsupported|scalar type|dtype|tensor type|data ?type|can't be cast|"
    r"\b(bool|boolean|integral|integer|floating|long|int32|int64)\b",
    re.IGNORECASE,
)
_COMPUTED_AS = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float64: torch.float32}
"""The host computes narrow floats wide where it has no kernel."""

_SMALL = 1 << 10
_MODERATE = 1 << 20

_accepted: set[Any] = set()
"""Operations with types that kernels have taken. Kernels do not change, so it holds for the process."""


@contextmanager
def ordinary_execution() -> Iterator[None]:
    """Neither recording nor pretending, as if no capture were going on."""
    with disable_proxy_modes_tracing(), unset_fake_temporarily(), torch.no_grad():
        yield


def refusal(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """The error with which the CPU refuses the types of a call that shape inference has taken."""
    traits = traits_of(func)
    if not traits.is_aten or traits.kind in _UNASKED:
        return None
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    key = (func, structure, *(_type_of(leaf) for leaf in leaves))
    if key in _accepted:
        return None
    error = _tried(func, structure, [_tiny(leaf) for leaf in leaves])
    if error is not None and _ABOUT_TYPES.search(str(error)):
        return error
    _accepted.add(key)
    return None


def in_eager_words(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception) -> Exception:
    """The error of shape inference as the CPU words it, or as it is where that cannot be known cheaply."""
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    elements = sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
    if not traits_of(func).is_aten or traits_of(func).kind in _UNASKED - {OpKind.VIEW} or elements > _MODERATE:
        return error
    return _tried(func, structure, [_zeros(leaf) for leaf in leaves]) or error


def _tried(func: Any, structure: Any, leaves: list[Any]) -> Exception | None:
    with ordinary_execution():
        leaves = [leaf() if isinstance(leaf, _Stub) else leaf for leaf in leaves]
        try:
            args, kwargs = pytree.tree_unflatten(leaves, structure)
            func(*args, **kwargs)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            return error
    return None


class _Stub:
    """A tensor to be made outside of the capture."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self._shape = tuple(shape)
        self._dtype = _COMPUTED_AS.get(dtype, dtype)

    def __call__(self) -> torch.Tensor:
        return torch.zeros(self._shape, dtype=self._dtype)


def _zeros(leaf: Any) -> Any:
    return _Stub(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else _setting(leaf)


def _setting(leaf: Any) -> Any:
    """An argument that is no tensor; types that it names are those of the stand-ins."""
    return _COMPUTED_AS.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf


def _tiny(leaf: Any) -> Any:
    """A stand-in of the same rank and type; of the same shape, too, where that is small already."""
    if not isinstance(leaf, torch.Tensor):
        return _setting(leaf)
    return _Stub(leaf.shape if leaf.numel() <= _SMALL else [min(size, 2) for size in leaf.shape], leaf.dtype)


def _type_of(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.ndim == 0
    return leaf if isinstance(leaf, torch.dtype) else type(leaf)
