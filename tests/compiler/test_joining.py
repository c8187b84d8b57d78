"""Gradients of parts are laid side by side where that is what their sum amounts to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums


class Parted(nn.Module):
    """A value, taken apart and used."""

    def __init__(self, take: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 12)
        self.take = take

    def forward(self, x):
        parts = self.take(self.layer(x).view(-1, 3, 4))
        total = sum((p * (i + 2)).square().sum() for i, p in enumerate(parts))
        return poptorch.identity_loss(total, reduction="sum")


def trained(take):
    """The targets of the training program; gradients are compared with autograd's."""
    torch.manual_seed(0)
    model = Parted(take)
    reference = Parted(take)
    reference.load_state_dict(model.state_dict())
    x = torch.randn(5, 6)
    executor = poptorch.trainingModel(model, poptorch.Options(), torch.optim.SGD(model.parameters(), lr=0.01))
    executor(x)
    reference(x).backward()
    torch.optim.SGD(reference.parameters(), lr=0.01).step()
    assert_close_sums(list(model.parameters()), list(reference.parameters()), terms=5, steps=2)  # rows, both passes
    return [str(node.target) for node in executor.program.operations()]


@pytest.mark.parametrize(
    ("join", "part", "take"),
    [
        ("stack", "select", lambda y: [y[:, 0], y[:, 1], y[:, 2]]),
        ("stack", "select", lambda y: [y[:, 2], y[:, -3], y[:, 1]]),
        ("stack", "select", lambda y: [y[..., 3], y[..., 1], y[..., 0], y[..., 2]]),
        ("cat", "slice", lambda y: [y[:, :1], y[:, 1:]]),
        ("cat", "slice", lambda y: [y[..., 3:], y[..., :2], y[..., 2:3]]),
        ("cat", "slice", lambda y: [y[:, -1:], y[:, :-1]]),
    ],
)
def test_parts_that_cover_the_whole_are_joined(join, part, take):
    targets = trained(take)
    assert f"aten.{join}.default" in targets
    assert f"aten.{part}_backward.default" not in targets


@pytest.mark.parametrize(
    "take",
    [
        lambda y: [y[:, 0], y[:, 2]],  # a gap
        lambda y: [y[:, 0], y[:, 1], y[:, 1], y[:, 2]],  # one twice
        lambda y: [y[:, :2], y[:, 1:]],  # overlap
        lambda y: [y[..., ::2], y[..., 1::2]],  # steps
        lambda y: [y[:, 0], y[:, 1], y[:, 2], y],  # the whole, besides
        lambda y: [y[:, 0], y[:, 1:]],  # of two kinds
        lambda y: [y[:, 0], y[..., 1], y[:, 1], y[:, 2]],  # along two dimensions
    ],
)
def test_other_parts_are_added(take):
    targets = trained(take)
    assert not {"aten.stack.default", "aten.cat.default"} & set(targets)


def test_attention_needs_no_sums_of_its_projections():
    model = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = model

        def forward(self, x):
            return poptorch.identity_loss(self.layer(x).square().mean(), reduction="none")

    executor = poptorch.trainingModel(Loss(), poptorch.Options(), torch.optim.SGD(model.parameters(), lr=0.01))
    executor.compile(torch.randn(2, 3, 16))
    targets = [str(node.target) for node in executor.program.operations()]
    assert "aten.select_backward.default" not in targets
