"""Values that replicas in different processes exchange in the middle of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from poptorch.distributed import process_group
from poptorch.distributed.process_group import ProcessGroup


class ReplicaNetwork:
    """The processes that have other replicas of the same model, in the order of their replicas.

    Messages have a group of their own: whatever goes wrong in the order of calls, none is taken for a gradient.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = process_group.group_of(group.members, "replicas")
        self.own = self._group.index

    def swap(self, values: torch.Tensor, rooms: Mapping[int, torch.Tensor], tag: int) -> None:
        """Send values to the processes with these numbers, and receive theirs, of any type that torch has."""
        if not values.numel():
            return
        sent, group = _bytes(values.contiguous()), self._group
        under_way = [group.receive(_bytes(room), group.members[process], tag) for process, room in rooms.items()]
        under_way += [group.send(sent, group.members[process], tag) for process in rooms]
        for message in under_way:
            message.wait()

    def give_up(self, error: BaseException) -> None:
        """The others hear why this process cannot go on, and wait no longer."""
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self._group.give_up(f"stopped in the middle of a call, by {what}")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
