"""A training program cut into forward and backward pass."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import poptorch
from poptorch.compiler.codegen import levels

aten = torch.ops.aten


class Attention(nn.Module):
    """Causal attention of one projection, which the backward pass needs as well."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return poptorch.identity_loss((y * y).mean(), reduction="none")


class Calls(TorchDispatchMode):
    """Counts the operations that the kernels are surrounded by."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Any] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_attention_runs_once_in_each_direction(monkeypatch, accumulation):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    monkeypatch.setattr(levels, "_SMALL_SECONDS", 0.0)  # Python between the kernels: it can be watched
    model = Attention()
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(2 * accumulation, 4, 8)
    executor(x)
    with Calls() as calls:
        executor(x)
    assert calls.counts[aten._scaled_dot_product_flash_attention_for_cpu.default] == accumulation
    assert calls.counts[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] == accumulation
