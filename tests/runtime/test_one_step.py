"""Calls of one micro-batch with its update: the short way does what the long one does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import poptorch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        y = self.net(x)
        return y, nn.functional.mse_loss(y, target)


def run(short: bool, options: poptorch.Options | None = None) -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(3)
    model = Model()
    options = poptorch.Options() if options is None else options
    options.randomSeed(7)
    executor = poptorch.trainingModel(
        model, options, poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=True)
    )
    x, target = torch.randn(4, 6), torch.randn(4, 3)
    executor.compile(x, target)
    assert executor.session.engine._simple_step
    executor.session.engine._simple_step = short
    values: list[torch.Tensor] = []
    for call in range(6):
        if call == 2:
            optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, use_combined_accum=True)
            executor.setOptimizer(optimizer)
        if call == 4:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        values += [tensor.clone() for tensor in executor(x, target)]
        for stamps in (executor.getPerfCounters(), executor.getComputeLatency()):
            assert stamps
    values += [parameter.detach().clone() for parameter in model.parameters()]
    values.append(torch.tensor(executor.rng_state))
    return executor, values


@pytest.mark.parametrize("mode", [poptorch.OutputMode.Final, poptorch.OutputMode.All, poptorch.OutputMode.Sum])
def test_both_ways_give_the_same_bits(monkeypatch, mode):
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    called = []
    engine_class = type(run(True)[0].session.engine)
    real = engine_class._run_step
    monkeypatch.setattr(engine_class, "_run_step", lambda self, inputs: called.append(1) or real(self, inputs))
    executor, short = run(True, poptorch.Options().outputMode(mode))
    assert len(called) == 6
    other, long = run(False, poptorch.Options().outputMode(mode))
    assert len(called) == 6
    assert all(map(torch.equal, short, long))
    ours, theirs = executor.session.engine, other.session.engine
    assert [len(part) for part in executor.getPerfCounters()] == [len(part) for part in other.getPerfCounters()]
    assert len(ours.schedule()[1]) == len(theirs.schedule()[1]) == 1


def test_an_error_in_the_step_names_the_operation(monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(3, 2)

        def forward(self, index: torch.Tensor) -> Any:
            y = self.table(index)
            return poptorch.identity_loss(y, reduction="mean")

    model = Looks()
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    executor(torch.tensor([1]))
    with pytest.raises(Exception, match="test_one_step"):
        executor(torch.tensor([5]))
    executor(torch.tensor([2]))
