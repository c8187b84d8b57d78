"""Small models shared by the executor tests."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch


class LinearWithLoss(nn.Module):
    """One layer and a mean squared error; the loss is returned last."""

    def __init__(self, inputs: int = 3, outputs: int = 2) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)

    def forward(self, x, target=None):
        y = self.fc(x)
        if target is None:
            return y
        return y, nn.functional.mse_loss(y, target)


@pytest.fixture
def linear():
    torch.manual_seed(42)
    return LinearWithLoss()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)


@pytest.fixture
def trained(linear, batch):
    """A training executor that ran once, and its model."""
    executor = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.1))
    executor(*batch)
    return executor, linear


class CopyCounter:
    """Counts downloads by replacing the executor's method, as users do."""

    def __init__(self, executor) -> None:
        self.count = 0
        original = executor.copyWeightsToHost

        def counting():
            self.count += 1
            original()

        executor.copyWeightsToHost = counting


@pytest.fixture
def count_copies():
    return CopyCounter
