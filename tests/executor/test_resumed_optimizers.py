"""Optimizers that carry state from an earlier run: their attributes count, and no state gets lost."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
TARGET = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.fc = nn.Linear(3, 2)

    def forward(self, x, target):
        return F.mse_loss(self.fc(x), target)


class Job:
    """A model in training, in one object that the ways to resume can change."""

    def __init__(self, **settings: float) -> None:
        self.model = Net()
        self.optimizer = poptorch.optim.SGD(self.model.parameters(), lr=0.1, **settings)
        self.executor = poptorch.trainingModel(self.model, optimizer=self.optimizer)

    def __call__(self) -> torch.Tensor:
        self.executor(X, TARGET)
        return self.model.fc.weight.detach().clone()

    def rewrap(self) -> None:
        self.executor.destroy()
        self.executor = poptorch.trainingModel(self.model, optimizer=self.optimizer)


def _detach(job: Job) -> None:
    job.executor.detachFromDevice()


def _load(job: Job) -> None:
    job.optimizer.load_state_dict(job.optimizer.state_dict())


def _copy(job: Job) -> None:
    job.optimizer.state_dict()
    job.optimizer = copy.copy(job.optimizer)


@pytest.mark.parametrize("resume", [_detach, _load, _copy, Job.rewrap], ids=lambda f: f.__name__)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_new_learning_rate_counts(resume: Callable[[Job], None], momentum: float) -> None:
    usual, resumed = Job(momentum=momentum), Job(momentum=momentum)
    for job in (usual, resumed):
        job()
    resume(resumed)
    for job in (usual, resumed):
        job.optimizer.param_groups[0]["lr"] = 0.01
        job.executor.setOptimizer(job.optimizer)
        before = job()
        after = job()
    assert not torch.equal(before, after)
    assert torch.equal(resumed.model.fc.weight, usual.model.fc.weight)
    params = [job.optimizer.state_dict()["ipu_param"] for job in (usual, resumed)]
    assert params[0].keys() == params[1].keys()
    shown = [value for key, value in params[1].items() if "earningRate" in key]
    assert shown
    assert all(torch.equal(params[0][key], params[1][key]) for key in params[0])


def test_a_fresh_optimizer_keeps_the_momenta_of_the_device() -> None:
    jobs = [Job(momentum=0.9), Job(momentum=0.9)]
    for job in jobs:
        job()
        job()
        job.optimizer = poptorch.optim.SGD(job.model.parameters(), lr=0.1, momentum=0.9)
        job.executor.setOptimizer(job.optimizer)
        assert job.optimizer.state_dict()["ipu_state"] is None
    jobs[1].rewrap()
    kept, again = (job() for job in jobs)
    assert_close_sums(again, kept, terms=6)


def test_a_group_with_nothing_to_update() -> None:
    model = Net()
    model.unused = nn.Linear(2, 2)
    groups = [{"params": model.fc.parameters()}, {"params": model.unused.parameters()}]
    before = model.fc.weight.detach().clone()
    optimizer = poptorch.optim.RMSprop(groups, lr=0.1, use_tf_variant=True)
    poptorch.trainingModel(model, optimizer=optimizer)(X, TARGET)
    assert not torch.equal(model.fc.weight, before)
