"""One report of a small pipelined training model, made once for all tests that only read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x, label=None):
        scores = self.second(torch.relu(self.first(x)))
        return scores if label is None else (scores, nn.functional.cross_entropy(scores, label))


def train(options: poptorch.Options, calls: int = 1) -> poptorch.PoplarExecutor:
    """A model on two IPUs after so many calls."""
    model = Model()
    poptorch.BeginBlock(model.second, ipu_id=1)
    options.Training.gradientAccumulation(4)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    executor = poptorch.trainingModel(model, options, optimizer=optimizer)
    for _ in range(calls):
        executor(torch.randn(16, 16), torch.zeros(16, dtype=torch.int64))
    return executor


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> tuple[Path, poptorch.ipu_model.Estimate]:
    """The folder of a report, and the estimate that it is made of."""
    folder = tmp_path_factory.mktemp("reports")
    executor = train(poptorch.Options().enableProfiling(str(folder)), calls=3)
    estimate = poptorch.ipu_model.estimate(executor, arch="mk2")
    executor.destroy()
    return folder / "training", estimate


@pytest.fixture
def folder(written) -> Path:
    return written[0]


@pytest.fixture
def estimate(written):
    return written[1]
