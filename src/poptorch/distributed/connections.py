"""Gradients that travel over the connections between processes, on one host or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from poptorch.distributed.portions import (
    BUCKET_BYTES,
    Bucket,
    Ranges,
    Rows,
    contents,
    fill,
    from_rows,
    make_buckets,
    own_elements,
    rows_of,
    to_rows,
    travelling_type,
)
from poptorch.distributed.process_group import ProcessGroup
from poptorch.distributed.transfer import Transfer


class Connections:
    """Sums gradients with the collective operations of a group.

    Gradients are copied together into buckets, each of which is summed on its own while the next is filled. Large ones
    are summed where they are.
    """

    def __init__(self, group: ProcessGroup, averaged: bool, replicas: int) -> None:
        self._group = group
        self._averaged = averaged
        self._replicas = replicas
        self._buckets: dict[tuple[str, ...], list[Bucket]] = {}

    def start_sums(self, transfer: Transfer, gradients: Mapping[str, torch.Tensor]) -> None:
        """Whole tensors; small ones are summed in the same memory in each round."""
        small = {name: g for name, g in gradients.items() if not _travels_alone(g)}
        for name, gradient in gradients.items():
            if name not in small:
                transfer.add(self._group.start_sum(gradient), partial(self._alone, name, gradient))
        for bucket in self._buckets_for(small):
            before = fill(bucket, small)
            transfer.add(self._group.start_sum(bucket.room), partial(self._contents, bucket, before))

    def start_scatter(self, transfer: Transfer, gradients: Mapping[str, torch.Tensor], held: Ranges) -> None:
        """Tensors of which each process gets the elements that it holds."""
        group = self._group
        for rows in rows_of(gradients, group.size, self._replicas):
            parts, own = rows.room(group.size), rows.room(1)
            for name, part in rows.parts(parts):
                to_rows(gradients[name], part)
            types = {name: gradients[name].dtype for name in rows.widths}
            pending = group.start_scatter_sum(parts.view(-1), own.view(-1))
            transfer.add(pending, partial(self._own_elements, rows, own, types, held))

    def gather(self, tensors: Mapping[str, torch.Tensor], held: Ranges) -> None:
        """Complete tensors, in place, of which each process has only the elements in ``held``."""
        group = self._group
        for rows in rows_of(tensors, group.size, self._replicas, travelling=False):
            parts, own = rows.room(group.size), rows.room(1)
            for name, part in rows.parts(own):
                start, stop = held[name]
                part[0, : stop - start] = tensors[name].reshape(-1)[start:stop]
            group.start_gather_parts(own.view(-1), parts.view(-1)).wait()
            for name, part in rows.parts(parts):
                from_rows(part, tensors[name])

    def _mean_of(self, total: torch.Tensor) -> torch.Tensor:
        return total.div_(self._group.size) if self._averaged else total

    def _alone(self, name: str, total: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {name: self._mean_of(total)}

    def _contents(self, bucket: Bucket, before: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        self._mean_of(bucket.room)
        return contents(bucket, before)

    def _own_elements(
        self, rows: Rows, own: torch.Tensor, types: Mapping[str, torch.dtype], held: Ranges
    ) -> Mapping[str, torch.Tensor]:
        return own_elements(rows, self._mean_of(own), types, held)

    def _buckets_for(self, gradients: Mapping[str, torch.Tensor]) -> Sequence[Bucket]:
        """The buckets of these gradients, made once."""
        key = tuple(gradients)
        if key not in self._buckets:
            self._buckets[key] = make_buckets(gradients)
        return self._buckets[key]


def _travels_alone(gradient: torch.Tensor) -> bool:
    big = gradient.numel() * gradient.element_size() >= BUCKET_BYTES // 2
    return big and gradient.is_contiguous() and travelling_type(gradient.dtype) is gradient.dtype
