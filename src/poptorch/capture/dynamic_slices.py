"""Ordinary slices whose bounds are tensors: ``t[start:start + 4]`` with a start that is known at run time only.

Both bounds must be the same value plus constants, so that the length of the slice is known when the model is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from poptorch import ambient
from poptorch.errors import createPoptorchError
from poptorch.ops.recorded import node_of
from poptorch.ops.slicing import dynamic_slice

aten = torch.ops.aten

_NOT_CONSTANT = (
    "The size of the sliced tensor must be a constant for each execution of the model when running on the IPU."
)
_ADVICE = "Write both bounds as the same tensor plus integer constants: t[start : start + 4]."


@dataclass(frozen=True)
class _Bound:
    """The value of ``term`` plus ``offset``."""

    term: object
    offset: int | float
    varies: bool
    """Whether the term depends on an input or on the state of the model."""


def read_item(func: Callable[..., Tensor], tensor: Tensor, key: Any) -> Tensor:
    """``tensor[key]``, where slices may begin at the value of a tensor."""
    items = [_without_bytes(item) for item in (key if isinstance(key, tuple) else (key,))]
    slices = [i for i, item in enumerate(items) if isinstance(item, slice)]
    for index in slices:
        step = items[index].step
        if isinstance(step, int) and step < 1:
            raise createPoptorchError(f"Slicing step must be at least 1, not {step}.")
    dynamic = [i for i in slices if isinstance(items[i].start, Tensor) or isinstance(items[i].stop, Tensor)]
    for index in dynamic:
        size = _constant_size(items[index])
        if size is not None:
            dimension = _dimension_of(items, index, tensor.ndim)
            tensor = dynamic_slice(tensor, dimension, items[index].start, size, items[index].step or 1)
            items[index] = slice(None)
    return func(tensor, tuple(items) if isinstance(key, tuple) else items[0])


def _without_bytes(item: Any) -> Any:
    """Tensors of bytes are masks, which shape inference does not know."""
    return item.to(torch.bool) if isinstance(item, Tensor) and item.dtype is torch.uint8 else item


def _constant_size(item: slice) -> int | None:
    """The length of a slice between run-time bounds; ``None`` if the bounds are constants after all."""
    start, stop = _bound(item.start), _bound(item.stop)
    if not any(bound is not None and bound.varies for bound in (start, stop)):
        return None
    if start is None or stop is None or start.term != stop.term:
        if _follows_dispatcher():
            return None
        raise createPoptorchError(f"{_NOT_CONSTANT} {_ADVICE}")
    if isinstance(start.offset, float) or isinstance(stop.offset, float):
        raise createPoptorchError(
            f"{_NOT_CONSTANT} In this case, there is a float added to the slice indices meaning it may change between "
            f"runs. {_ADVICE}"
        )
    size = stop.offset - start.offset
    if size == 0:
        raise createPoptorchError("The start and end of a slice must be different.")
    if size < 0:
        raise createPoptorchError(
            f"Taking a slice of a tensor with the end less than the start is not supported ({size})."
        )
    return size


def _follows_dispatcher() -> bool:
    """With ``Jit.traceModel(False)``, run-time bounds are captured as constants."""
    context = ambient.current()
    return context is not None and context.settings.dispatched


def _bound(value: Any) -> _Bound | None:
    if value is None:
        return None
    if not isinstance(value, Tensor):
        return _Bound(None, int(value), False)
    node = node_of(value)
    return _Bound(id(value), 0, False) if node is None else _read(node)


_SAME_VALUE = frozenset({
    aten.detach.default, aten.alias.default, aten.clone.default, aten._to_copy.default, aten.view.default,
    aten.reshape.default, aten.squeeze.default, aten.squeeze.dim, aten.unsqueeze.default, aten.lift_fresh_copy.default,
})  # fmt: skip
_SUMS = {aten.add.Tensor: 1, aten.sub.Tensor: -1, aten.add_.Tensor: 1, aten.sub_.Tensor: -1}


def _read(node: fx.Node) -> _Bound:
    """A recorded value as a term and the constants added to it."""
    if node.op != "call_function":
        return _Bound(node, 0, node.op == "placeholder")
    if node.target in _SAME_VALUE and isinstance(node.args[0], fx.Node):
        return _read(node.args[0])
    if node.target in _SUMS and not node.kwargs:
        first, second = node.args
        constant = second if isinstance(second, (int, float)) else _constant(second)
        if isinstance(first, fx.Node) and constant is not None:
            inner = _read(first)
            return _Bound(inner.term, inner.offset + _SUMS[node.target] * constant, inner.varies)
    operands = [_read(n) for n in node.all_input_nodes]
    key = (str(node.target), tuple(_structure(a) for a in node.args))
    return _Bound(key, 0, any(o.varies for o in operands))


def _constant(node: Any) -> int | float | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    known = getattr(value, "constant", None)
    return known.item() if isinstance(known, Tensor) and known.numel() == 1 else None


def _structure(argument: Any) -> object:
    """Something that is equal for operations that compute the same value."""
    if isinstance(argument, fx.Node):
        bound = _read(argument)
        return (bound.term, bound.offset)
    if isinstance(argument, (list, tuple)):
        return tuple(_structure(a) for a in argument)
    return argument


def _dimension_of(items: list[Any], index: int, ndim: int) -> int:
    """Which dimension of the tensor an element of the key speaks about."""
    before = sum(_consumed(item) for item in items[:index])
    if any(item is Ellipsis for item in items[:index]):
        return ndim - sum(_consumed(item) for item in items[index:])
    return before


def _consumed(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1
