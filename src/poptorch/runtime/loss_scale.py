"""Automatic loss scaling in the engine: counts from the program, a factor for the next step."""

from __future__ import annotations

import threading
from typing import Protocol

import torch

from poptorch.program.loop import MicroBatch


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
