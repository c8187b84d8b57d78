"""Training executors with one optimizer: which of them has its newest state.

A model that is trained with two losses in turn is two executors around the same modules, often with one optimizer. Each
has momenta on its device. Before one of them runs, it takes over those of the one that ran last.
"""

from __future__ import annotations

import weakref
from typing import Any, Generic, Protocol, TypeVar

import torch


class Holder(Protocol):
    """An executor's side of an optimizer."""

    @property
    def holds_state(self) -> bool:
        """Whether there is state of the optimizer on the device."""

    def take_state(self, other: Any) -> None:
        """Overwrite the state of common parameters with that of another one."""


_Holder = TypeVar("_Holder", bound=Holder)


class SharedOptimizers(Generic[_Holder]):
    """The optimizers of this process that have run, each with those who ran it."""

    def __init__(self) -> None:
        self._all: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.WeakSet[_Holder]] = (
            weakref.WeakKeyDictionary()
        )
        self._newest: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[_Holder]] = (
            weakref.WeakKeyDictionary()
        )

    def runs(self, optimizer: torch.optim.Optimizer, holder: _Holder) -> None:
        """The device of this one is about to change the state."""
        self._all.setdefault(optimizer, weakref.WeakSet()).add(holder)
        self._newest[optimizer] = weakref.ref(holder)

    def newest(self, optimizer: torch.optim.Optimizer, own: _Holder) -> _Holder:
        """The one that ran the optimizer last; ``own`` if nobody else did, or it is gone."""
        reference = self._newest.get(optimizer)
        other = None if reference is None else reference()
        return other if other is not None and other.holds_state else own

    def leaves(self, optimizer: torch.optim.Optimizer, holder: _Holder) -> None:
        """This one forgets the optimizer; what it has newest goes to another one, if there is any."""
        others: weakref.WeakSet[_Holder] = self._all.get(optimizer, weakref.WeakSet())
        others.discard(holder)
        if self.newest(optimizer, holder) is not holder or optimizer not in self._newest:
            return
        del self._newest[optimizer]
        other = next((other for other in others if other.holds_state), None)
        if other is not None and holder.holds_state:
            other.take_state(holder)
            self._newest[optimizer] = weakref.ref(other)
