"""Buffers that are written with what was in other buffers, or in themselves."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch


class History(nn.Module):
    """The last values, moved from buffer to buffer, in an order that is not that of the names."""

    def __init__(self, blocks=False):
        super().__init__()
        self.blocks = blocks
        self.layer, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        for name in ("newest", "older", "oldest", "one", "other"):
            self.register_buffer(name, torch.randn(3, 3))
        self.register_buffer("turned", torch.randn(3, 3))

    def forward(self, x):
        if self.blocks:
            poptorch.Block.start("a", ipu_id=0)
        y = self.layer(x)
        self.oldest.copy_(self.older)
        self.older.copy_(self.newest.t())
        self.newest.copy_(y.detach())
        kept = self.one.clone()
        self.one.copy_(self.other)
        self.other.copy_(kept)
        self.turned.copy_(self.turned.t().clone())
        if self.blocks:
            poptorch.Block.start("b", ipu_id=1)
        y = self.last(y) + self.oldest + self.one * self.turned
        return y, poptorch.identity_loss(y.pow(2).mean(), "none")


@pytest.mark.parametrize("level", ["interpret", "native"])
@pytest.mark.parametrize("blocks", [False, True])
def test_each_buffer_gets_what_was_there_before(level, blocks, monkeypatch):
    if level == "native" and blocks:
        pytest.skip("the same code as that of one part")
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    torch.manual_seed(0)
    model = History(blocks)
    reference = copy.deepcopy(model)
    reference.blocks = False
    options = poptorch.Options()
    parts = 4 if blocks else 1
    options.Training.gradientAccumulation(parts)
    options.outputMode(poptorch.OutputMode.All)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.0))
    for _ in range(3):
        x = torch.randn(3 * parts, 3)
        expected = torch.cat([reference(part)[0] for part in x.chunk(parts)])
        torch.testing.assert_close(executor(x)[0], expected.detach(), rtol=1e-4, atol=1e-5)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, reference.state_dict()[name], msg=lambda m, n=name: f"{n}: {m}")


class Expanded(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("index", torch.tensor([[0, 1, 0]]).expand(2, 3))

    def forward(self, x):
        y = torch.zeros(2, 2).scatter_add(1, self.index, self.layer(x))
        return y, poptorch.identity_loss(y.mean(), "none")


def test_a_buffer_that_repeats_its_elements_is_left_alone():
    model = Expanded()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    executor(torch.ones(2, 3))
    assert model.index.tolist() == [[0, 1, 0]] * 2
    assert model.index.stride() == (0, 1)
