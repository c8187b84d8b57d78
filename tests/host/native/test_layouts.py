"""Weights of convolutions lie in memory as native code wants them, and nobody else sees it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.host import levels
from poptorch.host.native.layouts import weight_formats

TERMS = 2 * 8 * 8
"""Places of the largest image, in both rows of a batch: terms in the gradient of a weight."""


class Net(nn.Module):
    """Convolutions of several kinds; one weight is used by something else, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 3, 2, 2)
        self.pointwise = nn.Conv2d(3, 4, 1)
        self.shared = nn.Conv2d(4, 2, 3)
        self.loss = nn.MSELoss()

    def forward(self, x, target=None):
        y = self.shared(self.pointwise(self.up(torch.relu(self.conv(x)))))
        if target is None:
            return y
        return y, self.loss(y, target) + self.shared.weight.square().sum()


def training_model(monkeypatch, level, optimizer=poptorch.optim.SGD, **arguments):
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    torch.manual_seed(0)
    model = Net()
    optimizer = optimizer(model.parameters(), **arguments)
    return model, optimizer, poptorch.trainingModel(model, poptorch.Options(), optimizer)


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 2, 4, 4, generator=generator), torch.randn(2, 2, 6, 6, generator=generator)


def test_only_weights_that_convolutions_alone_use_have_a_format(monkeypatch):
    _, _, executor = training_model(monkeypatch, "interpret", lr=0.1)
    executor.compile(*batch())
    formats = weight_formats(executor.program)
    assert formats == {"conv.weight": torch.channels_last, "up.weight": torch.channels_last}


@pytest.mark.parametrize(
    ("optimizer", "arguments"),
    [(poptorch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (poptorch.optim.AdamW, {"lr": 0.01})],
)
def test_results_and_everything_that_can_be_read_are_as_interpreted(monkeypatch, optimizer, arguments):
    read = {}
    for level in ("interpret", "native"):
        model, own, executor = training_model(monkeypatch, level, optimizer, **arguments)
        outputs = [executor(*batch()) for _ in range(4)]
        read[level] = (outputs, copy.deepcopy(model.state_dict()), own.state_dict())
        for tensor in [*(y for y, _ in outputs), *model.state_dict().values(), *own.state_dict()["ipu_state"].values()]:
            assert tensor.is_contiguous()
    assert executor.session.engine.parameters()["conv.weight"].is_contiguous(memory_format=torch.channels_last)
    assert_close_sums(read["native"], read["interpret"], terms=TERMS, steps=4)


def test_auto_takes_weights_and_state_along(monkeypatch):
    losses = {}
    for level, switch in (("interpret", 60.0), ("auto", 1e-3)):
        monkeypatch.setattr(levels, "SWITCH_AFTER_SECONDS", switch)
        _, _, executor = training_model(monkeypatch, level, lr=0.1, momentum=0.9)
        executor.compile(*batch())
        calls = executor.executable.code.native_after or 2
        losses[level] = [executor(*batch())[1] for _ in range(10)]
        assert level == "interpret" or calls < 9
    assert executor.executable.code.formats
    assert_close_sums(losses["auto"], losses["interpret"], terms=TERMS, steps=10)


def test_weights_and_state_can_be_loaded(monkeypatch):
    model, own, executor = training_model(monkeypatch, "native", lr=0.1, momentum=0.9)
    executor(*batch())
    weights, state = copy.deepcopy(model.state_dict()), own.state_dict()
    expected = [executor(*batch())[1] for _ in range(2)]
    model.load_state_dict(weights)
    executor.copyWeightsToDevice()
    own.load_state_dict(state)
    executor.setOptimizer(own)
    assert_close_sums([executor(*batch())[1] for _ in range(2)], expected, terms=TERMS)
