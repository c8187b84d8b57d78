"""An LSTM forecasts a time series, in two replicas that share their weights.

The series is a sum of two waves and noise. The model sees 24 values and tells the next 6. Each update averages the
gradients of two replicas with four micro-batches each.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

PAST, FUTURE, EPOCHS = 24, 6, 8


def windows(count: int, random: torch.Generator) -> TensorDataset:
    """What was, and what follows."""
    start = 100 * torch.rand(count, 1, generator=random)
    at = start + torch.arange(PAST + FUTURE)
    series = torch.sin(at / 3) + 0.5 * torch.sin(at / 7) + 0.05 * torch.randn(at.shape, generator=random)
    return TensorDataset(series[:, :PAST, None].contiguous(), series[:, PAST:].contiguous())


class Forecast(nn.Module):
    """The last state of an LSTM says what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(1, 24, batch_first=True)
        self.head = nn.Linear(24, FUTURE)

    def forward(self, past: torch.Tensor, future: torch.Tensor | None = None) -> object:
        states, _ = self.memory(past)
        forecast = self.head(states[:, -1])
        return forecast if future is None else (forecast, nn.functional.mse_loss(forecast, future))


def main() -> dict[str, Any]:
    """Do all of it; returns what the gallery draws."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    model = Forecast()
    options = poptorch.Options().replicationFactor(2)
    options.Training.gradientAccumulation(4)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    training = poptorch.trainingModel(model, options, optimizer)
    loader = poptorch.DataLoader(options, windows(1024, random), batch_size=16, shuffle=True)
    for epoch in range(EPOCHS):
        bar = tqdm(loader, desc=f"epoch {epoch + 1}/{EPOCHS}")
        for past, future in bar:
            _, loss = training(past, future)
            bar.set_postfix(loss=f"{loss.mean().item():.4f}")
        schedule.step()
        training.setOptimizer(optimizer)  # sends the new learning rate

    past, future = windows(256, random).tensors
    forecast = poptorch.inferenceModel(model.eval())(past)
    error = (forecast - future).square().mean().sqrt().item()
    naive = (past[:, -1] - future).square().mean().sqrt().item()
    print(f"error {error:.3f}; repeating the last value {naive:.3f}; {time.perf_counter() - begun:.1f} s")
    assert error < naive / 2
    return {"past": past, "future": future, "forecast": forecast}


if __name__ == "__main__":
    main()
