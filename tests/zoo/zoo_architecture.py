"""What the zoo says about each of its architectures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Architecture:
    """A small model with the data and the loss that it is trained with."""

    name: str
    build: Callable[[], nn.Module]
    """Makes the network, from torch's global random numbers."""

    data: Callable[[int], tuple[Tensors, Tensors]]
    """Inputs and targets with the given number of rows, from torch's global random numbers."""

    loss: Callable[..., torch.Tensor]
    """``loss(output, *targets)``, a mean over rows, marked as a loss for poptorch."""

    learning_rate: float = 0.05
    cuts: tuple[str, ...] = ()
    """Names of sub-modules, in the order in which they run, at which a new pipeline stage may begin."""

    half_tolerance: float | None = 2e-2
    """How far float16 results may be from float32 ones; ``None`` where float16 makes no sense."""

    def network(self, seed: int = 0) -> nn.Module:
        """A network with reproducible weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build()

    def batch(self, rows: int = 2, seed: int = 0) -> tuple[Tensors, Tensors]:
        """A reproducible batch: inputs and targets."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 + seed)
            return self.data(rows)

    def trainable(self, seed: int = 0) -> WithLoss:
        """The network with its loss, ready for ``poptorch.trainingModel``; call it with inputs and targets."""
        inputs, _ = self.batch(1)
        return WithLoss(self.network(seed), self.loss, len(inputs))


class WithLoss(nn.Module):
    """A network followed by its loss; takes inputs and targets, returns output and loss."""

    def __init__(self, network: nn.Module, loss: Callable[..., torch.Tensor], num_inputs: int) -> None:
        super().__init__()
        self.network = network
        self.loss = loss
        self.num_inputs = num_inputs

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, torch.Tensor]:
        output = self.network(*tensors[: self.num_inputs])
        return output, self.loss(output, *tensors[self.num_inputs :])

    def twin(self) -> WithLoss:
        """A copy with weights of its own."""
        return copy.deepcopy(self)
