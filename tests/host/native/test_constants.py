"""Constants of native code, of which some were folded away."""

from __future__ import annotations

import torch
from torch import nn

import poptorch


class Several(nn.Module):
    """The first constant is only used to compute another one; the others are too large to be folded."""

    def __init__(self):
        super().__init__()
        self.folded, self.plus, self.times = torch.tensor([2.0]), torch.randn(70000), torch.randn(70000)

    def forward(self, x):
        return (x + self.plus * 1.5) * self.times * (self.folded * 3)


def test_each_constant_is_the_one_that_was_meant(monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    torch.manual_seed(0)
    model = Several()
    x = torch.randn(1)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x))
