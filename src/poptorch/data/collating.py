"""Stacking the items of a batch straight into memory that somebody has prepared for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

Room = Callable[[torch.Size, torch.dtype], torch.Tensor | None]
"""Gives a tensor of this shape and type to write to, or ``None`` when there is no room for it."""


def collate_into(items: Sequence[Any], room: Room) -> Any:
    """What torch's ``default_collate`` makes of ``items``, with the stacked tensors in ``room`` where it has some.

    >>> target = torch.zeros(2, 3)
    >>> batch = collate_into([(torch.ones(3), 1), (torch.ones(3), 2)], lambda shape, dtype: target)
    >>> batch[0].data_ptr() == target.data_ptr(), target.sum().item(), batch[1]
    (True, 6.0, tensor([1, 2]))
    """

    def stack(tensors: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        first = tensors[0]
        dtype = first.dtype
        # What torch would promote, differentiate or refuse is left to torch.
        simple = type(first) is torch.Tensor and first.layout is torch.strided and not first.is_nested
        if not simple or any(tensor.dtype is not dtype or tensor.requires_grad for tensor in tensors):
            return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
        target = room(torch.Size((len(tensors), *first.shape)), dtype)
        if target is None:
            return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
        return torch.stack(list(tensors), out=target)

    return collate(items, collate_fn_map={**default_collate_fn_map, torch.Tensor: stack})
