"""Training that is interrupted in the middle of an epoch goes on with the same bits.

Everything that a run depends on is in one folder: weights, optimizer, random numbers of the device (there is dropout),
and the place in the data. The program trains once without an interruption and once with one, and compares.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch
from poptorch.integrations.checkpoint import load_checkpoint, save_checkpoint

EPOCHS, STOP_AT = 3, 13


class Spiral(nn.Module):
    """Tells the arms of two spirals apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 2)

    def forward(self, points: torch.Tensor, arms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(self.layers(points))
        return scores, nn.functional.cross_entropy(scores, arms)


def spirals() -> TensorDataset:
    random = torch.Generator().manual_seed(1)
    arms = torch.randint(0, 2, (1024,), generator=random)
    turn = 6 * torch.rand(1024, generator=random)
    angle = turn + torch.pi * arms
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 3
    return TensorDataset(points + 0.03 * torch.randn(points.shape, generator=random), arms)


class Run:
    """A model with all that trains it, from the beginning or from a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        torch.manual_seed(0)
        options = poptorch.Options().deviceIterations(2).randomSeed(5)
        self.model = Spiral()
        self.optimizer = poptorch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.training = poptorch.trainingModel(self.model, options, self.optimizer)
        self.data = poptorch.DataLoader(options, spirals(), batch_size=32, shuffle=True)
        self.epoch = 0
        self.training.compile(torch.zeros(64, 2), torch.zeros(64, dtype=torch.long))
        if folder is not None:
            rest = load_checkpoint(folder, self.training, self.optimizer)
            self.epoch = rest["epoch"]
            self.data.load_state_dict(torch.load(folder / "data.pt", weights_only=True))

    def save(self, folder: Path) -> None:
        """All that the next step depends on."""
        save_checkpoint(folder, self.training, self.optimizer, epoch=self.epoch)
        torch.save(self.data.state_dict(), folder / "data.pt")

    def go(self, name: str, calls: int | None = None) -> float:
        """Train to the end, or for so many calls; returns the last loss."""
        done, loss = 0, torch.zeros(())
        with tqdm(total=EPOCHS * len(self.data), desc=name, initial=self.epoch * len(self.data)) as bar:
            while self.epoch < EPOCHS:
                for points, arms in self.data:
                    _, loss = self.training(points, arms)
                    done += 1
                    bar.update()
                    if done == calls:
                        return loss.item()
                self.epoch += 1
        return loss.item()


def main() -> None:
    begun = time.perf_counter()
    whole = Run()
    expected = whole.go("without an interruption")
    with tempfile.TemporaryDirectory() as temporary:
        first = Run()
        first.go("before the interruption", STOP_AT)
        first.save(Path(temporary))
        second = Run(Path(temporary))
        found = second.go("after the interruption")
    same = all(map(torch.equal, whole.model.state_dict().values(), second.model.state_dict().values()))
    print(f"losses {expected:.6f} and {found:.6f}; the weights have the same bits: {same}")
    print(f"{time.perf_counter() - begun:.1f} s")
    assert same


if __name__ == "__main__":
    main()
