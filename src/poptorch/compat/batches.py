"""Joining batches the way libraries for graphs ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


def combine_batch_tensors_gen(tensors: Sequence[Sequence[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """For a list of batches, each a list of tensors: position by position, the tensors of all batches in one.

    >>> first, second = [torch.tensor([1]), torch.tensor([[2]])], [torch.tensor([3, 4]), torch.tensor([[5]])]
    >>> [joined.tolist() for joined in combine_batch_tensors_gen([first, second])]
    [[1, 3, 4], [[2], [5]]]
    """
    for column in zip(*tensors, strict=True):
        yield torch.cat(column)
