"""A model in one part or in two stages, for tests of failures."""

from __future__ import annotations

import torch
from torch import nn

import poptorch


class StagedClassifier(nn.Module):
    """Two layers, something between them, and a loss over three classes."""

    def __init__(self, pipelined: bool, inputs: int, hidden: int, between: nn.Module) -> None:
        super().__init__()
        self.pipelined = pipelined
        self.first, self.between, self.second = nn.Linear(inputs, hidden), between, nn.Linear(hidden, 3)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.pipelined:
            poptorch.Block.start("a", ipu_id=0)
        y = self.between(self.first(x))
        if self.pipelined:
            poptorch.Block.start("b", ipu_id=1)
        y = self.second(y)
        return y, nn.functional.cross_entropy(y, label)
