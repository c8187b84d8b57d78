"""Optimizer state through the executor: saving, loading, resuming in a new process (spec: optim, executor §10)."""

from __future__ import annotations

import pathlib

import pytest
import torch
from torch import nn

import poptorch
import preloaded

OPTIMIZERS = {
    "SGD": lambda p: poptorch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, use_combined_accum=False),
    "SGD combined": lambda p: poptorch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, use_combined_accum=True),
    "Adam": lambda p: poptorch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "AdamW": lambda p: poptorch.optim.AdamW(p, lr=0.01, weight_decay=0.01),
    "RMSprop": lambda p: poptorch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "LAMB": lambda p: poptorch.optim.LAMB(p, lr=0.01, weight_decay=0.01),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 2))

    def forward(self, x, target):
        return nn.functional.mse_loss(self.layers(x), target)


def data(step: int):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator)


def make(name: str, checkpoint=None):
    torch.manual_seed(7)
    model = Net()
    options = poptorch.Options().randomSeed(5)
    options.Training.gradientAccumulation(2)
    if checkpoint is not None:
        model.load_state_dict(checkpoint["model"])
    optimizer = OPTIMIZERS[name](model.parameters())
    if checkpoint is not None:
        optimizer.load_state_dict(checkpoint["optimizer"])
    executor = poptorch.trainingModel(model, options, optimizer)
    executor.compile(*data(0))
    if checkpoint is not None:
        executor.rng_state = checkpoint["random"]
    return model, optimizer, executor


def run(executor, steps) -> None:
    for step in steps:
        executor(*data(step))


RESUME = """
import sys, torch
sys.path[:0] = {folders!r}
from test_optimizer_state import make, run
checkpoints = torch.load({before!r}, weights_only=True)
result = {{}}
for name, checkpoint in checkpoints.items():
    model, optimizer, executor = make(name, checkpoint)
    run(executor, range(5, 10))
    result[name] = dict(model.state_dict())
torch.save(result, {after!r})
"""


def test_five_steps_and_five_in_a_new_process_equal_ten(tmp_path):
    expected, checkpoints = {}, {}
    for name in OPTIMIZERS:
        model, _, executor = make(name)
        run(executor, range(10))
        expected[name] = {k: v.clone() for k, v in model.state_dict().items()}
        model, optimizer, executor = make(name)
        run(executor, range(5))
        checkpoints[name] = {
            "model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "random": executor.rng_state
        }  # fmt: skip
    before, after = str(tmp_path / "before.pt"), str(tmp_path / "after.pt")
    torch.save(checkpoints, before)
    folders = [str(folder) for folder in pathlib.Path(__file__).parents[:2]]
    script = RESUME.format(folders=folders, before=before, after=after)
    preloaded.run(["-c", script], check=True)
    for name, state in torch.load(after, weights_only=True).items():
        for key, value in state.items():
            assert torch.equal(value, expected[name][key]), (name, key)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns(name):
    _, _, executor = make(name)
    first = executor(*data(0)).item()
    for _ in range(60):
        last = executor(*data(0)).item()
    assert last < first


def test_state_of_another_model_is_refused():
    other = nn.Linear(3, 3)
    optimizer = poptorch.optim.Adam(other.parameters())

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = other

        def forward(self, x):
            return poptorch.identity_loss(self.fc(x).pow(2).mean(), reduction="none")

    foreign = poptorch.trainingModel(WithLoss(), optimizer=optimizer)
    foreign(torch.randn(2, 3))
    state = optimizer.state_dict()

    model, mine, executor = make("Adam")
    run(executor, range(1))
    weights = {k: v.clone() for k, v in model.state_dict().items()}

    def load_and_run():
        mine.load_state_dict(state)
        executor(*data(1))

    with pytest.raises((poptorch.Error, ValueError, RuntimeError)):
        load_and_run()
    for key, value in model.state_dict().items():
        assert torch.equal(value, weights[key])


def test_groups_that_accumulate_differently_are_refused():
    model = Net()
    groups = [{"params": model.layers[0].parameters(), "momentum": 0.9}, {"params": model.layers[3].parameters()}]
    optimizer = poptorch.optim.SGD(groups, lr=0.1, use_combined_accum=True)
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.Running)
    executor = poptorch.trainingModel(model, options, optimizer)
    with pytest.raises(poptorch.Error, match="accumulated differently"):
        executor(*data(0))
    assert not executor.isCompiled()
