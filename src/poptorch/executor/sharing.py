"""Executors of models that share parameters or buffers: who has the newest values of which tensor.

The generator and the discriminator of a GAN are two training executors around the same modules. Each has a copy of the
weights on its device. Before one of them runs, what another has trained goes to the host, and from there to its device.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import torch
from torch.utils.weak import WeakIdKeyDictionary

from poptorch.executor.turns import Turns


class Sharer(Protocol):
    """The weights of a training executor, as far as other executors know them."""

    @property
    def turns(self) -> Turns:
        """Where threads wait for the executor."""

    def tensor_ids(self) -> frozenset[int]:
        """The ``id`` of every parameter and buffer."""

    def look(self) -> None:
        """A tensor that this one may have newer values of is used."""

    def download_if_needed(self) -> bool:
        """Bring trained weights to the host if it has old ones; tells whether it did."""


class Sharers:
    """The training executors of this process.

    Each change of the host's values by one of them has a number, in one series for all. So a device that has followed
    all changes up to some number knows which of its tensors it has old values of.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._changed = WeakIdKeyDictionary()
        """The number of the latest change of a tensor."""

        self.latest = next(self._numbers)
        """The number of the latest change of any."""

        self.all: weakref.WeakSet[Sharer] = weakref.WeakSet()
        self._ahead: dict[int, weakref.ref[Sharer]] = {}
        """Those whose device has newer values than the host, by their ``id``."""

    # -- devices with newer values -------------------------------------------------------------------------------

    def runs_ahead(self, sharer: Sharer) -> None:
        """The device of this one is about to train."""
        key = id(sharer)
        self._ahead[key] = weakref.ref(sharer, lambda _: self._ahead.pop(key, None))

    def is_level(self, sharer: Sharer) -> None:
        """The host has what this one trained, or what it trained was given up."""
        self._ahead.pop(id(sharer), None)

    def ahead_of(self, tensors: Callable[[], frozenset[int]], own: object) -> Iterator[Sharer]:
        """The others that have newer values of some of these tensors on their devices."""
        if not self._ahead or (len(self._ahead) == 1 and id(own) in self._ahead):
            return
        ids = tensors()
        for reference in list(self._ahead.values()):
            other = reference()
            if other is not None and other is not own and not ids.isdisjoint(other.tensor_ids()):
                yield other

    def look_at_all(self) -> None:
        """A tensor is used that an executor watched which is gone: any other may have newer values of it."""
        for reference in list(self._ahead.values()):
            other = reference()
            if other is not None:
                other.look()

    # -- values on the host --------------------------------------------------------------------------------------

    def number(self) -> int:
        """A number after that of all changes so far."""
        return next(self._numbers)

    def change(self, tensors: Iterable[torch.Tensor]) -> int:
        """The host has new values of these tensors. Returns the number of this change."""
        self.latest = next(self._numbers)
        for tensor in tensors:
            self._changed[tensor] = self.latest
        return self.latest

    def changed_since(self, tensor: torch.Tensor, number: int) -> bool:
        """Whether the host got newer values of a tensor after the change of this number."""
        return self._changed.get(tensor, -1) > number

    # -- turns ---------------------------------------------------------------------------------------------------

    def turns_for(self, ids: frozenset[int]) -> Turns:
        """Where threads wait for a new executor with these tensors.

        Executors that share tensors have one queue: each of them may have to fetch from any other, so that with queues
        of their own, two threads could wait for each other for ever.
        """
        queues = list(dict.fromkeys(s.turns for s in self.all if not ids.isdisjoint(s.tensor_ids())))
        if not queues:
            return Turns()
        for other in queues[1:]:
            other.join(queues[0])
        return queues[0]


sharers = Sharers()
