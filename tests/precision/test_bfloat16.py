"""Models whose parameters and inputs are bfloat16: the device computes them in float32."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums

X, T = torch.ones(4, 3, dtype=torch.bfloat16), torch.zeros(4, 2, dtype=torch.bfloat16)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        y = self.fc(x)
        return y if target is None else F.mse_loss(y, target)


def test_inference() -> None:
    model = Model().bfloat16()
    result = poptorch.inferenceModel(model)(X)
    assert_close_sums(result.float(), Model().bfloat16().float()(X.float()).detach(), terms=3)


def test_training() -> None:
    model = Model().bfloat16()
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    first, second = executor(X, T), executor(X, T)
    assert second < first
    assert model.fc.weight.dtype is torch.bfloat16
    assert not torch.equal(model.fc.weight, Model().bfloat16().fc.weight)
