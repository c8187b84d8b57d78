"""A residual network with a large batch: 512 pictures for each update, on IPUs that have room for eight.

Replicas take micro-batches at the same time, accumulation takes them one after the other: 8 x 16 x 4 = 512. Large
batches need few updates with a large learning rate, which grows at the beginning. Batch normalisation would see eight
pictures, so the network normalises groups of channels of one picture.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

MICRO_BATCH, ACCUMULATION, REPLICAS, EPOCHS, KINDS, SIZE = 8, 16, 4, 9, 4, 10


def textures(count: int, random: torch.Generator) -> TensorDataset:
    """Stripes in three directions, and checks, of random scale and phase, with noise."""
    kinds = torch.randint(0, KINDS, (count,), generator=random)
    scale, one, other = (0.8 + 0.8 * torch.rand(count, 1, 1, generator=random) for _ in range(3))
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    across, down = torch.sin(scale * x + 6 * one), torch.sin(scale * y + 6 * other)
    drawn = torch.stack([across, down, torch.sin(scale * (x + y) + 6 * one), across * down], 1)
    chosen = drawn[torch.arange(count), kinds]
    return TensorDataset((chosen + 0.3 * torch.randn(chosen.shape, generator=random))[:, None], kinds)


class Residual(nn.Module):
    """Two convolutions beside a path that lets the values through."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.GroupNorm(4, channels), nn.ReLU(), nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.GroupNorm(4, out), nn.ReLU(), nn.Conv2d(out, out, 3, 1, 1, bias=False),
        )  # fmt: skip
        nn.init.zeros_(self.layers[-1].weight)  # at first a block lets everything through: large batches like that
        self.past = nn.Identity() if (channels, stride) == (out, 1) else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.past(x) + self.layers(x)


class ResNet(nn.Module):
    """Three blocks; ResNet-18 has eight."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 2),
            nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(16, KINDS)

    def forward(self, pictures: torch.Tensor, kinds: torch.Tensor | None = None) -> Any:
        scores = self.head(self.features(pictures))
        return scores if kinds is None else nn.functional.cross_entropy(scores, kinds, label_smoothing=0.05)


def main() -> dict[str, Any]:
    """Train and test; returns what the gallery draws."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    model = ResNet()
    options = poptorch.Options().replicationFactor(REPLICAS)
    options.Training.gradientAccumulation(ACCUMULATION)
    # Gradients are means over all 512 pictures, so the learning rate does not depend on how they are divided.
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.outputMode(poptorch.OutputMode.Sum)  # of the losses of all micro-batches of a replica
    loader = poptorch.DataLoader(options, textures(2048, random), batch_size=MICRO_BATCH, shuffle=True)
    updates = EPOCHS * len(loader)

    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9, weight_decay=1e-4)
    warm = updates // 6
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda at: (at + 1) / warm if at < warm else (1 + math.cos(math.pi * (at - warm) / (updates - warm))) / 2,
    )
    training = poptorch.trainingModel(model, options, optimizer)
    losses, rates = [], []
    with tqdm(total=updates, desc=f"{updates} updates of {loader.combinedBatchSize} pictures") as bar:
        for _ in range(EPOCHS):
            for pictures, kinds in loader:
                losses.append(training(pictures, kinds).mean().item() / ACCUMULATION)
                rates.append(schedule.get_last_lr()[0])
                schedule.step()
                training.setOptimizer(optimizer)  # the next call has the next rate
                bar.set_postfix(loss=f"{losses[-1]:.3f}", rate=f"{rates[-1]:.2f}")
                bar.update()

    pictures, kinds = textures(512, random).tensors
    right = (poptorch.inferenceModel(model.eval())(pictures).argmax(1) == kinds).float().mean().item()
    print(f"{right:.1%} of new textures after {updates} updates, {time.perf_counter() - begun:.1f} s")
    assert right > 0.9
    return {"losses": losses, "rates": rates}


if __name__ == "__main__":
    main()
