"""Call arguments as data: plain Python values as JSON, tensors beside it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch


class NotPlain(Exception):
    """A value that JSON and tensors cannot describe; its text says which."""


def to_plain(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A JSON value for ``value``; its tensors are appended to ``tensors``.

    >>> found = []
    >>> to_plain({"x": (torch.ones(1), None, 0.5)}, found)
    {'dict': [['x', {'tuple': [{'tensor': 0}, None, {'float': '0.5'}]}]]}
    >>> from_plain(_, found)
    {'x': (tensor([1.]), None, 0.5)}
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return {"float": repr(value)}  # JSON knows neither infinity nor NaN
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    if kind in (tuple, list):
        return {kind.__name__: [to_plain(item, tensors) for item in value]}
    if kind in (dict, OrderedDict) and all(type(key) in (str, int, bool) for key in value):
        return {kind.__name__: [[key, to_plain(item, tensors)] for key, item in value.items()]}
    raise NotPlain(f"{kind.__module__}.{kind.__qualname__}")


def from_plain(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse of :func:`to_plain`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "float":
        return float(content)
    if kind == "tensor":
        return tensors[content]
    if kind == "dtype":
        return getattr(torch, content)
    if kind in ("tuple", "list"):
        items = [from_plain(item, tensors) for item in content]
        return tuple(items) if kind == "tuple" else items
    pairs = [(key, from_plain(item, tensors)) for key, item in content]
    return OrderedDict(pairs) if kind == "OrderedDict" else dict(pairs)
