"""The loss scale of a call: what the user set, times what automatic loss scaling found."""

from __future__ import annotations

import threading
from typing import Protocol

import torch

from poptorch.program.loop import MicroBatch
from poptorch.runtime.exchange import GradientExchange


class LossScaler(Protocol):
    """The algorithm: the factor that multiplies the loss scaling, and what changes it."""

    factor: torch.Tensor

    def add_counts(self, large: torch.Tensor, small: torch.Tensor) -> None:
        """Take the counts of one step."""

    def step(self) -> None:
        """End one optimizer step."""

    @property
    def observes(self) -> bool:
        """Whether the step under way is counted."""


class Tally:
    """Adds up the counts of all micro-batches, replicas and stages of one step; takes values like an output stream."""

    def __init__(self) -> None:
        self._large = 0
        self._lock = threading.Lock()

    def put(self, micro_batch: MicroBatch, value: torch.Tensor) -> None:
        """Take one count."""
        with self._lock:
            self._large += int(value)

    def take(self) -> int:
        """The sum since the last time."""
        large, self._large = self._large, 0
        return large


class LossScale:
    """What back-propagation starts from."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self.chosen = torch.ones(())
        """The loss scaling of the optimizer."""

        self.scaler: LossScaler | None = None
        """Automatic loss scaling, if it is on."""

        self.tally = Tally()
        self.current = [self.chosen]

    def begin(self) -> None:
        """A call begins: what a failed one left is forgotten."""
        self.tally.take()
        self._refresh()

    def advance(self, exchange: GradientExchange) -> None:
        """After an update: the loss scale of the next one. All processes count together."""
        if self.scaler is None:
            return
        large = exchange.sum_counts(self.tally.take())
        if self.scaler.observes:
            self.scaler.add_counts(torch.tensor(large), torch.tensor(self._elements - large))
        self.scaler.step()
        self._refresh()

    def _refresh(self) -> None:
        scaler = self.scaler
        self.current[0] = self.chosen if scaler is None else self.chosen * scaler.factor.float()
