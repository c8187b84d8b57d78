"""Joining consecutive micro-batches into the batch that one call of a model consumes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from poptorch.arg_parsers import parser_for


def concatenate(items: Sequence[Any]) -> Any:
    """One item with the rows of all ``items``, tensor by tensor, in the container of the first.

    >>> concatenate([(torch.tensor([1]), torch.tensor([2])), (torch.tensor([3]), torch.tensor([4]))])
    (tensor([1, 3]), tensor([2, 4]))
    """
    first, *rest = items
    return pytree.tree_map(lambda *parts: _concatenate_parts(parts), first, *rest, is_leaf=_has_parser)


def _has_parser(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) and parser_for(type(value)) is not None


def _concatenate_parts(parts: Sequence[Any]) -> Any:
    if all(isinstance(part, torch.Tensor) for part in parts):
        return torch.cat(list(parts))
    parser = parser_for(type(parts[0]))
    if parser is None:
        raise TypeError(
            f"Micro-batches with values of type {type(parts[0]).__name__} cannot be joined. Let collate_fn "
            "return "
            "tensors, or register a parser for the type with poptorch.registerCustomArgParser."
        )
    columns = zip(*(parser.yieldTensors(part) for part in parts), strict=True)
    return parser.reconstruct(parts[0], iter([torch.cat(column) for column in columns]))


def grouped(items: Iterable[Any], size: int, *, drop_last: bool) -> Iterator[Any]:
    """Join each ``size`` consecutive items; the incomplete group at the end is dropped or yielded as it is.

    >>> list(grouped(torch.arange(5).split(1), 2, drop_last=False))
    [tensor([0, 1]), tensor([2, 3]), tensor([4])]
    """
    group: list[Any] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield concatenate(group) if size > 1 else item
            group = []
    if group and not drop_last:
        yield concatenate(group)
