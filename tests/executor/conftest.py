"""Small models shared by the executor tests."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import poptorch
from poptorch import _logging


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


class Log(logging.Handler):
    """Keeps what the package logs, from both sides, in order."""

    def __init__(self) -> None:
        super().__init__(level=0)
        self.records: list[logging.LogRecord] = []

    def emit(self, record) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def clear(self) -> None:
        self.records.clear()

    def order(self, *phrases) -> bool:
        """Whether the phrases occur, one after the other."""
        lines = iter(self.lines)
        return all(any(phrase in line for line in lines) for phrase in phrases)


@pytest.fixture
def log():
    """Everything that is logged during the test, down to trace."""
    poptorch.setLogLevel("TRACE")
    handler = Log()
    for source in (_logging.logger, _logging.backend):
        source.addHandler(handler)
    yield handler
    for source in (_logging.logger, _logging.backend):
        source.removeHandler(handler)
