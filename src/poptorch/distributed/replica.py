"""Processes that share replicas: what travels between them, and the sums over those that train the same stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from poptorch.distributed import process_group
from poptorch.distributed.exchange import ProcessExchange
from poptorch.distributed.process_group import PointToPoint, ProcessGroup


class Team:
    """The processes that share the replicas of this one, in the order of their blocks of IPUs.

    Messages between two of them have a group of their own, and so have copies of weights to the host: whatever goes
    wrong in the order of calls, a message is never taken for another.
    """

    gathers = False
    """Whether each process has room on its host for the weights of all."""

    def __init__(self, everybody: ProcessGroup, size: int) -> None:
        first = everybody.process_id // size * size
        self._members = range(first, first + size)
        self._values = process_group.group_of(self._members, "values")
        self._weights = process_group.group_of(self._members, "weights")
        self._mail = process_group.group_of(self._members, "mail")

    @property
    def group(self) -> ProcessGroup:
        """These processes, for what all of them do at the same moment of a call."""
        return self._values

    def send(self, values: torch.Tensor, block: int, tag: int) -> PointToPoint:
        """Begin to send values to one of them."""
        return self._mail.send(values, self._members[block], tag)

    def receive(self, room: torch.Tensor, block: int, tag: int) -> PointToPoint:
        """Begin to receive from one of them."""
        return self._mail.receive(room, self._members[block], tag)

    def broadcast(self, tensors: Sequence[torch.Tensor], roots: Sequence[int]) -> None:
        """Give each tensor, in place, the values that it has in the process of its root."""
        _broadcast(self._values, self._members, tensors, roots)

    def gather_weights(self, tensors: Sequence[torch.Tensor], roots: Sequence[int]) -> None:
        """The same for weights on their way to the host, whenever all processes ask for them."""
        _broadcast(self._weights, self._members, tensors, roots)

    def gather_values(self, value: Any) -> list[Any]:
        """Plain values of all of them."""
        return self._values.gather_values(value)

    def give_up(self, error: BaseException) -> None:
        """The others hear why this process cannot go on, and wait no longer."""
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        for group in (self._mail, self._values, self._weights):
            group.give_up(f"stopped in the middle of a call, by {what}")


def _broadcast(
    group: ProcessGroup, members: Sequence[int], tensors: Sequence[torch.Tensor], roots: Sequence[int]
) -> None:
    under_way = []
    for tensor, root in zip(tensors, roots, strict=True):
        if not tensor.numel():
            continue
        values = tensor if tensor.is_contiguous() else tensor.contiguous()
        # Bytes, because not all types of torch are known to gloo.
        under_way.append((group.start_broadcast(values.view(-1).view(torch.uint8), members[root]), values, tensor))
    for pending, values, tensor in under_way:
        pending.wait()
        if values is not tensor:
            tensor.copy_(values)


class BlockExchange(ProcessExchange):
    """Sums gradients over the processes that run the same stages for other parts of the data.

    Counts of large gradients are summed over all processes: each has counted those of its own stages.
    """

    def __init__(self, group: ProcessGroup, everybody: ProcessGroup, averaged: bool, replicas: int) -> None:
        super().__init__(group, averaged, replicas)
        self._same_block = group
        self._all = everybody

    @property
    def is_local(self) -> bool:  # type: ignore[override]
        """Whether all replicas are in this row of processes."""
        return self._same_block.size == 1

    @property
    def group(self) -> ProcessGroup:
        """The processes with the same block of IPUs."""
        return self._same_block

    def sum_counts(self, count: int) -> int:
        """The sum of a number over all processes of the job."""
        return int(self._all.sum(torch.tensor([count])))


def same_block(everybody: ProcessGroup, size: int) -> ProcessGroup:
    """The processes that run the same block of IPUs of other replicas."""
    block = everybody.process_id % size
    return process_group.group_of(range(block, everybody.size, size), "gradients")
