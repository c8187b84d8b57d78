"""What an engine asks of the other processes that share its replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch


class LinkTransfer(Protocol):
    """A message under way."""

    def wait(self) -> None:
        """Wait for its end; raises :class:`poptorch.RecoverableError` if a process is lost."""


class ReplicaLink(Protocol):
    """The processes that share the replicas of this one, by the number of their block of IPUs."""

    gathers: bool
    """Whether each process has room on its host for the weights of all: then copies to the host bring all of them."""

    def send(self, values: torch.Tensor, block: int, tag: int) -> LinkTransfer:
        """Begin to send values that are contiguous; they must not change until the end."""

    def receive(self, room: torch.Tensor, block: int, tag: int) -> LinkTransfer:
        """Begin to receive what a process sends with the same tag; messages with one tag keep their order."""

    def broadcast(self, tensors: Sequence[torch.Tensor], roots: Sequence[int]) -> None:
        """Give each tensor, in place, the values that it has in the process of its root. All must do the same."""

    def gather_weights(self, tensors: Sequence[torch.Tensor], roots: Sequence[int]) -> None:
        """As :meth:`broadcast`, for copies of the weights to the host."""

    def gather_values(self, value: Any) -> list[Any]:
        """Plain values of all processes, by block."""

    def give_up(self, error: BaseException) -> None:
        """This process cannot go on in the middle of a call: the others hear why, and wait no longer."""
