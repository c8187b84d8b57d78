"""Gradients between processes: what happens after accumulation and before the update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

Gradients = Mapping[str, torch.Tensor]
Ranges = Mapping[str, tuple[int, int]]


class GradientExchange(Protocol):
    """Combines the gradients of all processes that train the same weights."""

    @property
    def is_local(self) -> bool:
        """Whether there is no other process: then updates may happen in the middle of back-propagation."""

    def reduce(self, gradients: Gradients) -> Gradients:
        """The sum over all processes (of means: the mean), by parameter name; the same on each of them."""

    def sum_counts(self, count: int) -> int:
        """The sum of a number over all processes."""

    def scatter(self, gradients: Gradients, held: Ranges) -> Gradients:
        """As :meth:`reduce`, but of the parameters in ``held`` only the elements of this process, in one dimension."""

    def gather(self, tensors: Gradients, held: Ranges) -> None:
        """Complete tensors, in place, of which each process has only the elements in ``held``."""


class LocalExchange:
    """One process alone: its gradients are all there are.

    >>> exchange = LocalExchange()
    >>> exchange.reduce({"w": torch.ones(2)})["w"], exchange.sum_counts(3)
    (tensor([1., 1.]), 3)
    """

    is_local = True

    def reduce(self, gradients: Gradients) -> Gradients:
        """The same gradients."""
        return gradients

    def sum_counts(self, count: int) -> int:
        """The same number."""
        return count

    def scatter(self, gradients: Gradients, held: Ranges) -> Gradients:
        """The elements that are held here."""
        return {n: g.reshape(-1)[slice(*held[n])] if n in held else g for n, g in gradients.items()}

    def gather(self, tensors: Gradients, held: Ranges) -> None:
        """Nothing: one process holds everything."""
