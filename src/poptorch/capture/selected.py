"""Elements chosen by a mask: a result without a fixed length, which only some functions can take all the same.

Speech models give their labels to ``ctc_loss`` that way: ``labels.masked_select(labels >= 0)``, one sequence after the
other. torch also takes a table of padded sequences, and that has a fixed size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.utils import _pytree as pytree

from poptorch.capture.locations import user_location
from poptorch.capture.refusals import DynamicShapeError, dynamic_shape_error


class Selected:
    """In the place of the tensor that a program cannot have. All uses but those that are known are errors.

    ``values`` and ``mask`` have one shape.
    """

    def __init__(self, values: Tensor, mask: Tensor, error: DynamicShapeError) -> None:
        self._values, self._mask, self._error = values, mask, error

    def __getattr__(self, name: str) -> Any:
        if name in _SAME:
            return lambda *args, **kwargs: self
        if name in _CASTS:
            return lambda *args, **kwargs: Selected(
                getattr(self._values, name)(*args, **kwargs), self._mask, self._error
            )
        if name.startswith("__"):
            raise AttributeError(name)
        return self.refuse()

    def refuse(self) -> NoReturn:
        """Raise the error that choosing the elements would have been."""
        raise self._error

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        for leaf in pytree.tree_leaves((args, kwargs or {})):
            if isinstance(leaf, Selected):
                leaf.refuse()
        raise TypeError(f"{func} has no elements chosen by a mask among its operands")

    def rows(self, lengths: Tensor) -> Tensor:
        """A table with one row for each length: the elements in their order, cut into pieces of these lengths.

        What follows in a row means nothing. No piece is longer than a row of the masked tensor.
        """
        width = self._values.shape[-1] if self._values.dim() > 1 else self._values.numel()
        values, mask, lengths = self._values.flatten(), self._mask.flatten(), lengths.to(torch.int64)
        count = values.numel()
        places = torch.where(mask, mask.to(torch.int64).cumsum(0) - 1, count)
        chosen = values.new_zeros(count + 1).scatter(0, places, values)
        starts = lengths.cumsum(0) - lengths
        return chosen[(starts.unsqueeze(1) + torch.arange(width)).clamp(max=count - 1)]


_SAME = frozenset({"contiguous", "clone", "detach", "flatten"})
_CASTS = frozenset({"to", "long", "int", "type", "cpu"})
_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv mod pow matmul neg abs invert and or xor lt le gt ge eq ne "
    "getitem setitem len iter bool int float index contains"
)


def _refused(self: Selected, *args: Any) -> NoReturn:
    self.refuse()


for _name in _OPERATORS.split():
    setattr(Selected, f"__{_name}__", _refused)
Selected.__hash__ = object.__hash__  # type: ignore[method-assign]


def selected(func: Callable[..., Tensor], tensor: Tensor, mask: Tensor) -> Any:
    """``func``, which chooses elements of integers by a mask, or what stands for its result."""
    try:
        return func(tensor, mask)
    except DynamicOutputShapeException as why:
        if tensor.is_floating_point() or tensor.is_complex():
            raise
        error = dynamic_shape_error(why.func, user_location())
    values, chosen = torch.broadcast_tensors(tensor, mask)
    return Selected(values, chosen, error)


def refuse_selected(results: Any) -> None:
    """A model cannot return such elements."""
    for leaf in pytree.tree_leaves(results):
        if isinstance(leaf, Selected):
            leaf.refuse()
