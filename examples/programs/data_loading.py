"""Loading data: the sizes of batches, who loads, and whether loading holds the model up.

The pictures are not stored but drawn when they are asked for: a circle, a square or a cross of random size, turned and
blurred. That takes time, as reading and transforming real pictures does. The program trains on them twice, once with
each mode of the loader, and compares how long the model had to wait.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from tqdm import tqdm

import poptorch

KINDS = ("circle", "square", "cross")
SIZE, EPOCHS = 24, 8


class Drawn(Dataset[tuple[torch.Tensor, int]]):
    """Pictures with a kind each. The index is the seed, so that an item is always the same."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        random = torch.Generator().manual_seed(self.first + index)
        kind = index % len(KINDS)
        middle = SIZE / 2 + 4 * torch.rand(2, generator=random) - 2
        radius = 4 + 4 * torch.rand((), generator=random)
        turn = torch.pi * torch.rand((), generator=random)
        # Four times as many dots as the picture has, then the mean of each 4 x 4: soft edges.
        dots = (
            torch.stack(torch.meshgrid(*[torch.arange(0.125, SIZE, 0.25)] * 2, indexing="ij")) - middle[:, None, None]
        )
        x, y = turn.cos() * dots[0] + turn.sin() * dots[1], turn.cos() * dots[1] - turn.sin() * dots[0]
        if kind == 0:
            inside = x.square() + y.square() < radius.square()
        elif kind == 1:
            inside = torch.maximum(x.abs(), y.abs()) < 0.9 * radius
        else:
            inside = (torch.minimum(x.abs(), y.abs()) < 0.3 * radius) & (torch.maximum(x.abs(), y.abs()) < radius)
        picture = nn.functional.avg_pool2d(inside.float()[None], 4)
        return picture + 0.1 * torch.randn(picture.shape, generator=random), kind


class Network(nn.Module):
    """Tells the kinds apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * 4 * 4, len(KINDS)),
        )  # fmt: skip

    def forward(self, pictures: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.layers(pictures)
        return scores, nn.functional.cross_entropy(scores, kinds)


def train(mode: poptorch.DataLoaderMode) -> tuple[list[float], Any, float]:
    """Losses, what the loader says about waiting, and the share of new pictures that are told apart."""
    torch.manual_seed(0)
    # One call takes 4 updates x 2 replicas x 2 accumulated micro-batches = 16 micro-batches, and the loader knows that:
    # with batch_size=8 its batches have 128 rows. What is left at the end of an epoch (here 512 = 4 x 128: nothing) is
    # dropped, as a compiled program has one shape; drop_last=False would ask for a batch of its own for it.
    options = poptorch.Options().deviceIterations(4).replicationFactor(2)
    options.Training.gradientAccumulation(2)
    model = Network()
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=1e-2))

    losses: list[float] = []
    # Leaving the block ends the loader's process. In mode Sync there is none.
    with poptorch.DataLoader(options, Drawn(512), batch_size=8, shuffle=True, mode=mode) as loader:
        if mode is poptorch.DataLoaderMode.Sync:
            print(f"batches of {loader.combinedBatchSize} rows, {len(loader)} in an epoch")
        bar = tqdm(total=EPOCHS * len(loader), desc=mode.name)
        for _ in range(EPOCHS):
            for pictures, kinds in loader:
                _, loss = training(pictures, kinds)
                losses.append(loss.mean().item())
                bar.set_postfix(loss=f"{losses[-1]:.3f}")
                bar.update()
        bar.close()
        report = loader.waitReport()

    # Inference has options of its own, so batches of other sizes: all that a call consumes is one micro-batch.
    inference = poptorch.inferenceModel(model.eval())
    right = 0
    for pictures, kinds in poptorch.DataLoader(poptorch.Options(), Drawn(192, first=10_000), batch_size=64):
        right += int((inference(pictures, kinds)[0].argmax(1) == kinds).sum())
    return losses, report, right / 192


def main() -> dict[str, Any]:
    """Train with both modes; returns what the gallery draws."""
    begun = time.perf_counter()
    losses, reports = {}, {}
    right = 0.0
    for mode in (poptorch.DataLoaderMode.Sync, poptorch.DataLoaderMode.Async):
        losses[mode.name], reports[mode.name], right = train(mode)
        print(f"{mode.name}: {reports[mode.name]}")
    assert losses["Sync"][:4] == losses["Async"][:4], "the first epoch has the same order in both modes"
    print(f"tells {right:.1%} of new pictures apart, {time.perf_counter() - begun:.1f} s")
    assert right > 0.9
    return {"pictures": [Drawn(3)[index] for index in range(3)], "losses": losses}


if __name__ == "__main__":  # the loader's process imports this file
    main()
