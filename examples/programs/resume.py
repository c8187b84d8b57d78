"""Training that a device interrupts in the middle of an epoch goes on with the same bits.

Everything that a run depends on is in one folder: weights, optimizer, random numbers of the device (there is dropout),
and the place in the data. The program trains once without an interruption. Then it trains again, and an IPU fails; it
goes on from the last checkpoint, and arrives at the same weights. The failure is rehearsed: ``POPTORCH_FAULTS`` asks
for it.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch
from poptorch.integrations.checkpoint import load_checkpoint, save_checkpoint

EPOCHS, CALLS_BETWEEN_CHECKPOINTS = 3, 5
FAULT = "ipu_reset: call=23"


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

    def go(self, name: str, folder: Path | None = None) -> list[float]:
        """Train to the end, with a checkpoint now and then; returns the losses."""
        losses = []
        with tqdm(total=EPOCHS * len(self.data), desc=name, initial=self.epoch * len(self.data)) as bar:
            while self.epoch < EPOCHS:
                for points, arms in self.data:
                    _, loss = self.training(points, arms)
                    losses.append(loss.item())
                    bar.update()
                    if folder is not None and len(losses) % CALLS_BETWEEN_CHECKPOINTS == 0:
                        self.save(folder)
                self.epoch += 1
        return losses


def main() -> dict[str, Any]:
    """Train without a failure and with one; returns what the gallery draws."""
    begun = time.perf_counter()
    whole = Run()
    expected = whole.go("without a failure")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["POPTORCH_FAULTS"] = FAULT
        first = Run()
        try:
            first.go("until an IPU fails", folder)
        except poptorch.RecoverableError as error:
            # The error says what would help: a reset of IPUs, of the partition, or of all.
            print(f"{error.type}: {error.recovery_action}")
        finally:
            first.training.destroy()  # gives the IPUs back
            del os.environ["POPTORCH_FAULTS"]
        second = Run(folder)
        found = second.go("from the last checkpoint", folder)
    same = all(map(torch.equal, whole.model.state_dict().values(), second.model.state_dict().values()))
    print(f"went on at call {len(expected) - len(found)} of {len(expected)}")
    print(f"losses {expected[-1]:.6f} and {found[-1]:.6f}; the weights have the same bits: {same}")
    print(f"{time.perf_counter() - begun:.1f} s")
    assert same
    assert expected[-len(found) :] == found
    assert expected[-1] < expected[0] / 2
    return {"expected": expected, "found": found}


if __name__ == "__main__":
    main()
