"""Tensors that share memory, of which the program changes one: refused by name, as the device has a copy of each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch


class Model(nn.Module):
    """A weight and what else there is in its memory."""

    def __init__(self, how, trained=True):
        super().__init__()
        self.how = how
        self.w = nn.Parameter(torch.randn(4, 4), requires_grad=trained)
        self.scale = nn.Parameter(torch.ones(()))
        if how == "buffer":
            self.register_buffer("other", self.w.data.diagonal())
        elif how == "weight":
            self.other = nn.Parameter(self.w.data.t(), requires_grad=trained)
        elif how == "attribute":
            self.other = self.w.detach()[1:3]
        elif how == "element":
            self.listed = [self.w]
        elif how == "two buffers":
            self.register_buffer("all", torch.zeros(4, 4))
            self.register_buffer("other", self.all[1])
        elif how == "columns":
            both = torch.randn(4, 8)
            self.w, self.other = nn.Parameter(both[:, :4]), nn.Parameter(both[:, 4:])

    def forward(self, x):
        if self.how == "two buffers":
            self.all += 1
        other = self.listed[0] if self.how == "element" else self.other
        y = (x @ self.w) * self.scale + other.sum()
        return y, poptorch.identity_loss(y.pow(2).mean(), "none")


def train(model):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return poptorch.trainingModel(model, optimizer=optimizer)(torch.ones(2, 4))[0]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("buffer", "Parameter w and buffer other share memory"),
        ("weight", "Parameter w and parameter other share memory"),
        ("two buffers", "Buffer all and buffer other share memory"),
        ("attribute", r"uses a tensor at .*test_shared_memory\.py:\d+ that shares memory with parameter w "),
        ("element", r"uses a tensor at .*shares memory with parameter w .*nn\.ParameterList"),
    ],
)
def test_what_would_not_be_seen_is_refused(how, said):
    with pytest.raises(poptorch.Error, match=said):
        train(Model(how))


@pytest.mark.parametrize("how", ["buffer", "weight", "attribute", "element"])
def test_what_does_not_change_may_share(how):
    model = Model(how, trained=False)
    with torch.no_grad():
        expected = model(torch.ones(2, 4))[0]
    torch.testing.assert_close(train(model), expected)
    torch.testing.assert_close(poptorch.inferenceModel(Model(how))(torch.ones(2, 4))[0].shape, expected.shape)


def test_neighbours_in_one_memory_share_nothing():
    model = Model("columns")
    expected = model(torch.ones(2, 4))[0].detach()
    torch.testing.assert_close(train(model), expected)
