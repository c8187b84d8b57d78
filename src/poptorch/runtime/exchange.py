"""Gradients between processes: what happens from the last back-propagation of a round on until the update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

Gradients = Mapping[str, torch.Tensor]
Ranges = Mapping[str, tuple[int, int]]


class ExchangeTransfer(Protocol):
    """Some gradients on their way."""

    def advance(self) -> None:
        """Do what there is to do before :meth:`take`; for several transfers first, so that none waits for the next."""

    def take(self) -> Gradients:
        """Wait for the results, by parameter name; once."""


class GradientExchange(Protocol):
    """Combines the gradients of all processes that train the same weights."""

    @property
    def is_local(self) -> bool:
        """Whether there is no other process: then updates may happen in the middle of back-propagation."""

    def start(self, gradients: Gradients, held: Ranges) -> ExchangeTransfer:
        """Begin to sum some gradients over all processes (of means: to take the mean); all start the same ones.

        Of the parameters in ``held`` the result has only the elements of this process, in one dimension.
        """

    def abandon(self) -> None:
        """A call has failed while gradients were on their way."""

    def sum_counts(self, count: int) -> int:
        """The sum of a number over all processes."""

    def gather(self, tensors: Gradients, held: Ranges) -> None:
        """Complete tensors, in place, of which each process has only the elements in ``held``."""


class LocalExchange:
    """One process alone: its gradients are all there are.

    >>> exchange = LocalExchange()
    >>> exchange.start({"w": torch.ones(2)}, {}).take()["w"], exchange.sum_counts(3)
    (tensor([1., 1.]), 3)
    """

    is_local = True

    def start(self, gradients: Gradients, held: Ranges) -> ExchangeTransfer:
        """The same gradients."""
        return _Here(gradients)

    def abandon(self) -> None:
        """Nothing: nothing was on its way."""

    def sum_counts(self, count: int) -> int:
        """The same number."""
        return count

    def gather(self, tensors: Gradients, held: Ranges) -> None:
        """Nothing: one process holds everything."""


class _Here:
    """Gradients that need not travel."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients

    def advance(self) -> None:
        """Nothing: they are here."""

    def take(self) -> Gradients:
        return self._gradients
