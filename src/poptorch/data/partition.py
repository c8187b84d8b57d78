"""The part of a data set that belongs to one of several processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from poptorch.errors import DatasetTooSmallError, createPoptorchError, misuse


@dataclass(frozen=True)
class Share:
    """Which positions of the data set's order belong to a process.

    With ``drop_last`` every process gets the same number of items, a multiple of the combined batch size, and
    some items are left over; without it the items are dealt out as evenly as possible.

    >>> Share.of(100, process_id=1, num_processes=3, combined=10, drop_last=True)
    Share(total=100, used=90, start=30, length=30, shift=10)
    >>> Share.of(100, process_id=1, num_processes=3, combined=10, drop_last=False)
    Share(total=100, used=100, start=34, length=33, shift=0)
    """

    total: int
    used: int
    """How many items all processes use together in one epoch."""
    start: int
    length: int
    shift: int
    """By how much the windows of all processes move in every other epoch when shuffling."""

    @classmethod
    def of(cls, total: int, process_id: int, num_processes: int, combined: int, drop_last: bool) -> Share:
        """The share of ``process_id``; ``combined`` is the combined batch size."""
        if not 0 <= process_id < num_processes:
            raise createPoptorchError(
                f"The process ID {process_id} is not in the range 0 to {num_processes - 1} of the "
                f"{num_processes} processes. Set it with poptorch.Options().Distributed.configureProcessId."
            )
        if not drop_last:
            each, extra = divmod(total, num_processes)
            start = process_id * each + min(process_id, extra)
            return cls(total, total, start, each + (process_id < extra), 0)
        length = combined * (total // (combined * num_processes))
        if length == 0:
            raise misuse(
                DatasetTooSmallError,
                f"The data set has {total} items, fewer than the {combined * num_processes} that one step "
                "needs "
                f"(combined batch size {combined} x {num_processes} processes). Use a smaller batch size, "
                "fewer device iterations, less gradient accumulation or fewer processes, or drop_last=False.",
            )
        return cls(total, length * num_processes, process_id * length, length, total % length)


class PartitionedDataset(Dataset[Any]):
    """One process's view of a map-style data set, with a new order in each epoch when it is shuffled.

    All processes draw the same permutations from the same seed and look at disjoint windows of them. Items
    that an epoch leaves out are moved into the windows of the next, so two epochs see every item.

    >>> view = PartitionedDataset(list("abcdefgh"), Share.of(8, 1, 2, combined=2, drop_last=True))
    >>> len(view), view[0]
    (4, 'e')
    """

    def __init__(self, dataset: Any, share: Share, *, shuffle: bool = False, seed: int | None = None) -> None:
        self._dataset = dataset
        self._share = share
        self._seed = seed
        self._generator: torch.Generator | None = None
        self._left_out: torch.Tensor | None = None
        self._epochs = 0
        # The order and, last, the start of the window. Shared memory: workers that are running follow it.
        self._order = torch.arange(share.total + 1).share_memory_() if shuffle else None
        if self._order is not None:
            self._order[-1] = share.start

    def next_epoch(self) -> None:
        """Draw the order of a new epoch; nothing to do for data that is not shuffled."""
        if self._order is None:
            return
        assert self._seed is not None, "Seed must be set when shuffling: all processes have to draw the same order."
        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self._seed)
        shift = self._share.shift if self._epochs % 2 == 0 else 0
        order = torch.randperm(self._share.total, generator=self._generator)
        if self._left_out is not None:
            _move_into_window(order, shift, self._share.used, self._left_out)
        self._left_out = torch.cat((order[:shift], order[shift + self._share.used :])).clone()
        self._order[:-1] = order
        self._order[-1] = shift + self._share.start
        self._epochs += 1

    def state_dict(self) -> dict[str, Any]:
        """What decides about the next order."""
        generator = None if self._generator is None else self._generator.get_state()
        left_out = None if self._left_out is None else self._left_out.clone()
        return {"generator": generator, "left_out": left_out, "epochs": self._epochs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next order be the one that followed such a state."""
        self._generator = None
        if state["generator"] is not None:
            self._generator = torch.Generator()
            self._generator.set_state(state["generator"])
        self._left_out, self._epochs = state["left_out"], state["epochs"]

    def __len__(self) -> int:
        return self._share.length

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._positions([index])[0]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A whole batch at once, in one call if the data set can do that."""
        positions = self._positions(indices)
        if callable(batched := getattr(self._dataset, "__getitems__", None)):
            return list(batched(positions))
        return [self._dataset[position] for position in positions]

    def _positions(self, indices: Sequence[int]) -> list[int]:
        length = self._share.length
        for index in indices:
            if not -length <= index < length:
                raise IndexError(f"Index {index} is out of range: this process's part has {length} items.")
        local = [index + length if index < 0 else index for index in indices]
        if self._order is None:
            return [self._share.start + index for index in local]
        return self._order[torch.tensor(local) + self._order[-1]].tolist()


def _move_into_window(order: torch.Tensor, start: int, length: int, wanted: torch.Tensor) -> None:
    """Swap every ``wanted`` item outside of the window with an unwanted one inside, in place.

    >>> order = torch.tensor([5, 0, 1, 2, 3, 4])
    >>> _move_into_window(order, start=1, length=5, wanted=torch.tensor([5]))
    >>> order
    tensor([0, 5, 1, 2, 3, 4])
    """
    is_wanted = torch.zeros(len(order), dtype=torch.bool)
    is_wanted[wanted] = True
    wanted_at = is_wanted[order]
    inside = torch.zeros(len(order), dtype=torch.bool)
    inside[start : start + length] = True
    outside_wanted = torch.nonzero(wanted_at & ~inside).flatten()
    # There are always enough: fewer items are left out than a window holds, because used > total / 2.
    swapped_with = torch.nonzero(~wanted_at & inside).flatten()[: len(outside_wanted)]
    order[outside_wanted], order[swapped_with] = order[swapped_with].clone(), order[outside_wanted].clone()
