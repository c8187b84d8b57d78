"""A training program cut into forward and backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import poptorch

ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


class Attention(nn.Module):
    """Causal attention of one projection, which the backward pass needs as well."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return poptorch.identity_loss((y * y).mean(), reduction="none")


@pytest.mark.parametrize("accumulation", [1, 2])
def test_attention_runs_once_in_each_direction(monkeypatch, accumulation):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    model = Attention()
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(2 * accumulation, 4, 8)
    executor(x)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        executor(x)
    counts = {row.key: row.count for row in profiled.key_averages()}
    assert counts[ATTENTION] == counts[f"{ATTENTION}_backward"] == accumulation
