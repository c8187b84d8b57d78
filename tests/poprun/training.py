"""A small training whose weights do not depend on how its replicas are spread over processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import poptorch

STEPS, ROWS, REPLICAS = 3, 2, 4


class Model(nn.Module):
    """One layer and a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        y = self.layer(x)
        return y, poptorch.identity_loss((y - target).square().mean(), "mean")


def train(options: poptorch.Options, process: int, processes: int) -> Any:
    """Train with this process's share of each batch; returns the executor."""
    options.randomSeed(5)
    training = poptorch.trainingModel(model := Model(), options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    generator = torch.Generator().manual_seed(2)
    share = REPLICAS * ROWS // processes
    own = slice(process * share, (process + 1) * share)
    for _ in range(STEPS):
        x = torch.randn(REPLICAS * ROWS, 4, generator=generator)
        target = torch.randn(REPLICAS * ROWS, 3, generator=generator)
        training(x[own], target[own])
    return training
