"""Phases: a model larger than its IPUs, loaded piece by piece.

Block names are f-strings, so that the depth of the model is a parameter.
"""

from __future__ import annotations

import torch
from torch import nn

import poptorch


class TwoTowers(nn.Module):
    """``depth`` layers on two halves of the features, which meet in every layer."""

    def __init__(self, depth: int, annotated: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        self.right = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        self.annotated = annotated

    def begin(self, block: str) -> None:
        if self.annotated:
            poptorch.Block.start(block)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = x, x
        for phase, (left, right) in enumerate(zip(self.left, self.right, strict=True)):
            self.begin(f"left{phase}")
            new_a = torch.tanh(left(a) + b)
            self.begin(f"right{phase}")
            new_b = torch.tanh(right(b) + a)
            a, b = new_a, new_b
        y = a + b
        return y, nn.functional.mse_loss(y, target)


def parallel(depth: int) -> poptorch.ParallelPhasedExecution:
    """Two groups of two IPUs: while one computes a phase, the other loads the next. Even phases on even IPUs."""
    phases = [poptorch.Phase(poptorch.Stage(f"left{p}"), poptorch.Stage(f"right{p}")) for p in range(depth)]
    strategy = poptorch.ParallelPhasedExecution(*phases)
    for p in range(depth):
        strategy.phase(p).ipus(p % 2, p % 2 + 2)
    return strategy


def serial(depth: int) -> poptorch.SerialPhasedExecution:
    """One group of two IPUs runs phase after phase; what the backward pass needs leaves the chip in between."""
    phases = [poptorch.Phase(poptorch.Stage(f"left{p}"), poptorch.Stage(f"right{p}")) for p in range(depth)]
    strategy = poptorch.SerialPhasedExecution(*phases)
    for p in range(depth):
        strategy.phase(p).ipus(0, 1)
    return strategy.setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd)


def train(model: nn.Module, strategy: object | None) -> tuple[list[float], poptorch.PoplarExecutor]:
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    if strategy is not None:
        options.setExecutionStrategy(strategy)
    training = poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=0.01))
    generator = torch.Generator().manual_seed(1)
    x, target = torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)
    return [training(x, target)[1].item() for _ in range(3)], training


def main(depth: int = 4) -> None:
    expected, _ = train(TwoTowers(depth), None)
    for strategy in (parallel(depth), serial(depth)):
        found, training = train(TwoTowers(depth, annotated=True), strategy)
        # The same computation, but other groups of additions: the last bits may differ.
        assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-4), f"{found} instead of {expected}"
        print(type(strategy).__name__, ", ".join(f"{loss:.4f}" for loss in found))
        print(training.drawSchedule())
        training.destroy()


if __name__ == "__main__":
    main()
