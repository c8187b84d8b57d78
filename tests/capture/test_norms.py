"""Batch normalisation with a cumulative mean."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3, momentum=None), nn.BatchNorm2d(3, momentum=None, affine=False)])
def test_cumulative_statistics_follow_eager(layer, recwarn):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = copy.deepcopy(layer)
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return poptorch.identity_loss((self.norm(x) * self.scale).pow(2).mean(), reduction="none")

    model = Model()
    reference = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    shape = (4, 3) if isinstance(layer, nn.BatchNorm1d) else (4, 3, 5, 5)
    for step in range(4):
        x = torch.randn(shape) + step
        loss = executor(x)
        assert_close_sums(loss, reference(x).detach(), terms=x.numel())
    assert_close_sums(dict(model.state_dict()), dict(reference.state_dict()), terms=x.numel(), steps=4)
    assert not [w for w in recwarn if "frozen" in str(w.message)]
    assert "forward" not in model.norm.__dict__
