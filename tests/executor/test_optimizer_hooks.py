"""Hooks of optimizers: those on the state dictionary work, those on the step are said to be left out."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

import poptorch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return poptorch.identity_loss(self.fc(x).pow(2).mean(), "none")


def executor_with(optimizer_class=torch.optim.Adam):
    model = Model()
    optimizer = optimizer_class(model.parameters(), lr=0.1)
    return optimizer, poptorch.trainingModel(model, optimizer=optimizer)


def halve(optimizer, args, kwargs):
    raise AssertionError("the step runs on the device")


@pytest.mark.parametrize("how", ["register_step_pre_hook", "register_step_post_hook"])
@pytest.mark.parametrize("optimizer_class", [torch.optim.Adam, poptorch.optim.AdamW])
def test_a_hook_on_the_step_is_said_to_be_left_out(how, optimizer_class):
    optimizer, executor = executor_with(optimizer_class)
    getattr(optimizer, how)(halve)
    with pytest.warns(UserWarning, match=rf"hook halve \(.*test_optimizer_hooks\.py:\d+\), from {how} .*never called"):
        executor(torch.ones(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executor(torch.ones(1, 2))


def test_also_one_that_comes_later_or_with_another_optimizer():
    optimizer, executor = executor_with()
    executor(torch.ones(1, 2))
    handle = optimizer.register_step_post_hook(halve)
    with pytest.warns(UserWarning, match="never called"):
        executor(torch.ones(1, 2))
    handle.remove()
    other = torch.optim.Adam(executor.model.parameters(), lr=0.1)
    other.register_step_pre_hook(halve)
    with pytest.warns(UserWarning, match="register_step_pre_hook of the optimizer"):
        executor.setOptimizer(other)


def test_also_those_of_all_optimizers():
    _, executor = executor_with()
    handle = torch_optimizer.register_optimizer_step_post_hook(halve)
    try:
        with pytest.warns(UserWarning, match=r"torch\.optim\.optimizer\.register_optimizer_step_post_hook"):
            executor(torch.ones(1, 2))
    finally:
        handle.remove()


@pytest.mark.parametrize("optimizer_class", [torch.optim.Adam, poptorch.optim.AdamW])
def test_hooks_on_the_state_are_called(optimizer_class):
    optimizer, executor = executor_with(optimizer_class)
    called = []
    optimizer.register_state_dict_pre_hook(lambda o: called.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "epoch": 3})
    optimizer.register_load_state_dict_pre_hook(lambda o, state: called.append(f"epoch {state.pop('epoch')}"))
    optimizer.register_load_state_dict_post_hook(lambda o: called.append("loaded"))
    executor(torch.ones(1, 2))
    optimizer.load_state_dict(optimizer.state_dict())
    executor(torch.ones(1, 2))
    assert called == ["before saving", "epoch 3", "loaded"]
