"""Several training executors with one optimizer: its momenta go on, whoever ran last."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

import poptorch


class WithLoss(nn.Module):
    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x, y):
        return poptorch.identity_loss(self.loss(self.model(x), y), "none")


OPTIMIZERS = {
    "Adam": {"lr": 0.05},
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
}


def wrapped(model, loss, optimizer, replicas=1):
    options = poptorch.Options().replicationFactor(replicas).outputMode(poptorch.OutputMode.All)
    return poptorch.trainingModel(WithLoss(model, loss), options, optimizer)


@pytest.mark.parametrize("room", [poptorch.optim, torch.optim])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("replicas", [1, 2])
def test_two_losses_in_turn(room, name, replicas):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    expected = copy.deepcopy(model)
    optimizer = getattr(room, name)(model.parameters(), **OPTIMIZERS[name])
    by_torch = getattr(torch.optim, name)(expected.parameters(), **OPTIMIZERS[name])
    losses = mse_loss, l1_loss
    executors = [wrapped(model, loss, optimizer, replicas) for loss in losses]
    for turn in (0, 1, 1, 0, 1, 0):
        x, y = torch.randn(4, 3), torch.randn(4, 2)
        executors[turn](x, y)
        by_torch.zero_grad()
        losses[turn](expected(x), y).backward()
        by_torch.step()
    for trained, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(trained.detach(), wanted.detach(), rtol=1e-4, atol=1e-5)


def momenta(optimizer):
    return {name: tensor for name, tensor in optimizer.state_dict()["ipu_state"].items() if name.startswith("Accl1")}


def test_state_is_that_of_the_one_that_ran_last():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.05)
    first, second = wrapped(model, mse_loss, optimizer), wrapped(model, l1_loss, optimizer)
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    first(x, y)
    after_first = momenta(optimizer)
    second.compile(x, y)
    torch.testing.assert_close(momenta(optimizer), after_first)
    second(x, y)
    after_second = momenta(optimizer)
    assert any(not torch.equal(tensor, after_first[name]) for name, tensor in after_second.items())
    second.destroy()
    torch.testing.assert_close(momenta(optimizer), after_second)
    first(x, y)
    assert any(not torch.equal(tensor, after_second[name]) for name, tensor in momenta(optimizer).items())


@pytest.mark.parametrize("room", [poptorch.optim, torch.optim])
def test_what_a_destroyed_one_learned_goes_on(room):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    expected = copy.deepcopy(model)
    optimizer = room.SGD(model.parameters(), lr=0.1, momentum=0.9)
    by_torch = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    first, second = wrapped(model, mse_loss, optimizer), wrapped(model, mse_loss, optimizer)
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    for executor in (second, first, first, second):
        executor(x, y)
        by_torch.zero_grad()
        mse_loss(expected(x), y).backward()
        by_torch.step()
    second.destroy()
    first(x, y)
    by_torch.zero_grad()
    mse_loss(expected(x), y).backward()
    by_torch.step()
    torch.testing.assert_close(model.weight.detach(), expected.weight.detach(), rtol=1e-4, atol=1e-5)


def test_state_that_the_user_loads_counts():
    """Zeros in place of the momenta, for the one that did not run last."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=False)
    first, second = wrapped(model, mse_loss, optimizer), wrapped(model, mse_loss, optimizer)
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    first(x, y)
    second(x, y)
    stored = optimizer.state_dict()
    stored["ipu_state"] = {name: torch.zeros_like(tensor) for name, tensor in stored["ipu_state"].items()}
    optimizer.load_state_dict(stored)
    expected = nn.Linear(3, 2)
    expected.load_state_dict(model.state_dict())
    first(x, y)
    mse_loss(expected(x), y).backward()
    torch.testing.assert_close(model.bias.detach(), expected.bias.detach() - 0.1 * expected.bias.grad)
