"""Values that lie in memory in another way than torch's functions of shapes say."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums


class Turned(nn.Module):
    """The gradient of ``softplus`` comes back transposed, and the layer before it sees it as a matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = F.softplus(self.layer(x))
        return poptorch.identity_loss((y.transpose(1, 2).contiguous() ** 2), reduction="mean")


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_view_of_a_transposed_gradient(monkeypatch, accumulation):
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    x = torch.randn(2 * accumulation, 3, 4, generator=torch.Generator().manual_seed(1))
    model, reference = Turned(), Turned()
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1.0))(x)
    reference(x).backward()
    expected = (reference.layer.weight - reference.layer.weight.grad).detach()
    assert_close_sums(model.layer.weight.detach(), expected, terms=x.numel(), scale=1.0)
