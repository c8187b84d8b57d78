"""Gradients and counts between processes: what an engine calls from the last back-propagation on until the update."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from poptorch.distributed import process_group
from poptorch.distributed.connections import Connections
from poptorch.distributed.portions import Ranges
from poptorch.distributed.process_group import ProcessGroup
from poptorch.distributed.shared import SharedRooms
from poptorch.distributed.shared_buffers import SharedMemory
from poptorch.distributed.transfer import Transfer


class ProcessExchange:
    """Sums gradients over the processes of the job.

    They travel through memory where all processes are on one host, else over connections. Half-precision gradients are
    summed in float32: the result is rounded once, whatever the number of processes. Every process gets the same bits.

    With ``averaged``, the gradients of each process are means, and so is the result. ``replicas`` are those of one
    process.
    """

    is_local = False

    def __init__(self, group: ProcessGroup, averaged: bool = False, replicas: int = 1) -> None:
        self._everybody = group
        self._replicas = replicas
        self._averaged = averaged
        self._ways: dict[ProcessGroup, Connections | SharedRooms] = {}

    @property
    def group(self) -> ProcessGroup:
        """The processes that take part now."""
        return process_group.current() or self._everybody

    def start(self, gradients: Mapping[str, torch.Tensor], held: Ranges) -> Transfer:
        """Begin to sum some gradients over all processes (of means: to take the mean).

        Of the parameters in ``held`` the result has only the elements of this process, in one dimension. What is left
        of such a gradient may be freed at once.
        """
        transfer = Transfer()
        whole = {name: g for name, g in gradients.items() if name not in held}
        divided = {name: g for name, g in gradients.items() if name in held}
        if whole:
            self._way(self.group).start_sums(transfer, whole)
        if divided:
            self._way(self._everybody).start_scatter(transfer, divided, held)
        return transfer

    def abandon(self) -> None:
        """A call has failed while gradients were on their way: the others cannot go on either, and hear of it."""
        self.group.give_up("has failed in the middle of a training step")

    def gather(self, tensors: Mapping[str, torch.Tensor], held: Ranges) -> None:
        """Complete tensors, in place, of which each process has only the elements in ``held``."""
        self._way(self._everybody).gather(tensors, held)

    def sum_counts(self, count: int) -> int:
        """The sum of a number over all processes."""
        return int(self.group.sum(torch.tensor([count])))

    def _way(self, group: ProcessGroup) -> Connections | SharedRooms:
        """How gradients get to the other members; all of them find the same."""
        if group not in self._ways:
            memory = SharedMemory.of(group)
            self._ways[group] = (
                Connections(group, self._averaged, self._replicas)
                if memory is None
                else SharedRooms(memory, self._averaged, self._replicas)
            )
        return self._ways[group]
