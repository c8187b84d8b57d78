"""Training that goes on after failures of devices: it writes checkpoints, resets what is broken, and resumes.

The failures are rehearsed: POPTORCH_FAULTS asks for them. Set it yourself to rehearse others, for instance
``POPTORCH_FAULTS="seed=1; ipu_reset: probability=0.1" python examples/recovery.py``. At the end the weights have the
same bits as those of a run without failures.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Sampler, TensorDataset

import poptorch

EPOCHS, ITEMS, BATCH_SIZE = 3, 192, 4
DEVICE_ITERATIONS, ACCUMULATION = 2, 4
STEPS_BETWEEN_CHECKPOINTS = 2
MOST_RESETS = 20
FAULTS = "ipu_reset: call=4, ipu=1; partition_reset: call=9, iteration=2; full_reset: call=13; ipu_reset: call=14"


class Classifier(nn.Module):
    """Two pipeline stages, with dropout: the random numbers are part of what a checkpoint has to hold."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3))
        self.head = poptorch.BeginBlock(nn.Linear(16, 3), ipu_id=1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(self.features(x))
        return scores, nn.functional.cross_entropy(scores, labels)


class Order(Sampler[int]):
    """A shuffled order that depends on the epoch alone, from any position on: the data can be resumed."""

    def __init__(self) -> None:
        self.epoch = self.start = 0

    def __len__(self) -> int:
        return ITEMS - self.start

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(ITEMS, generator=generator)[self.start :].tolist())


@dataclass
class Checkpoint:
    """All that the next step depends on."""

    epoch: int
    step: int
    """Steps done in that epoch."""

    model: dict[str, Any]
    optimizer: dict[str, Any]
    random: list[int] | None
    """Seed and position of the device's random numbers."""

    def write(self, path: Path) -> None:
        """Replace the file as a whole: a failure in the middle leaves the one before."""
        unfinished = path.with_suffix(".unfinished")
        torch.save(asdict(self), unfinished)
        os.replace(unfinished, path)

    @staticmethod
    def read(path: Path) -> Checkpoint:
        """What :meth:`write` wrote."""
        return Checkpoint(**torch.load(path))


MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD with momentum": lambda model: poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "AdamW": lambda model: poptorch.optim.AdamW(model.parameters(), lr=0.01),
}


class Training:
    """A model on its device, at some position of the data."""

    def __init__(self, make_optimizer: MakeOptimizer, checkpoint: Checkpoint | None) -> None:
        torch.manual_seed(0)
        self.epoch = self.step = 0
        self.options = poptorch.Options().deviceIterations(DEVICE_ITERATIONS).randomSeed(42)
        self.options.Training.gradientAccumulation(ACCUMULATION)
        self.options.showCompilationProgressBar(False)
        self.order = Order()
        self.loader = poptorch.DataLoader(self.options, dataset(), BATCH_SIZE, sampler=self.order)
        self.model = Classifier()
        if checkpoint is not None:
            self.model.load_state_dict(checkpoint.model)
        self.optimizer = make_optimizer(self.model)
        self.executor = poptorch.trainingModel(self.model, self.options, self.optimizer)
        if checkpoint is not None:
            self.executor.compile(*next(iter(self.loader)))  # optimizer and random numbers go to a device
            self.optimizer.load_state_dict(checkpoint.optimizer)
            self.executor.rng_state = checkpoint.random
            self.epoch, self.step = checkpoint.epoch, checkpoint.step

    def run(self, path: Path) -> None:
        """Train to the end, and write a checkpoint now and then."""
        for epoch in range(self.epoch, EPOCHS):
            self.epoch = epoch
            self.order.epoch = self.epoch
            self.order.start = self.step * BATCH_SIZE * DEVICE_ITERATIONS * ACCUMULATION
            for x, labels in self.loader:
                self.executor(x, labels)
                self.step += 1
                if self.step % STEPS_BETWEEN_CHECKPOINTS == 0:
                    self.checkpoint().write(path)
            self.step = 0

    def checkpoint(self) -> Checkpoint:
        """The present state; reading it brings weights and optimizer state from the device."""
        return Checkpoint(
            self.epoch, self.step, dict(self.model.state_dict()), self.optimizer.state_dict(), self.executor.rng_state
        )


def dataset() -> TensorDataset:
    """Points and the corner that they are in."""
    x = torch.randn(ITEMS, 8, generator=torch.Generator().manual_seed(7))
    return TensorDataset(x, x[:, :3].argmax(1))


def reset(error: poptorch.RecoverableError) -> None:
    """Do what the error asks for. Here all IPUs are virtual; a cluster has its own commands."""
    actions = {
        "IPU_RESET": "reset the IPUs of this process",
        "PARTITION_RESET": "reset the partition and the links between its IPUs",
        "FULL_RESET": "power cycle the machine",
    }
    print(f"  {error.type}: {actions[error.recovery_action]}, then resume")


def train(make_optimizer: MakeOptimizer, path: Path) -> tuple[Checkpoint, int]:
    """Train whatever happens; returns the last state and the number of resets."""
    for resets in range(MOST_RESETS):
        training = None
        try:
            training = Training(make_optimizer, Checkpoint.read(path) if path.exists() else None)
            training.run(path)
            return training.checkpoint(), resets
        except poptorch.RecoverableError as error:
            reset(error)
        finally:
            if training is not None:
                training.executor.destroy()  # gives back the IPUs
    raise RuntimeError(f"{MOST_RESETS} resets did not help")


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal in every bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def compare(make_optimizer: MakeOptimizer, faults: str) -> int:
    """Train without failures and with them; returns the number of resets."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("POPTORCH_FAULTS", None)
        expected, _ = train(make_optimizer, Path(folder) / "undisturbed.pt")
        os.environ["POPTORCH_FAULTS"] = faults
        try:
            reached, resets = train(make_optimizer, Path(folder) / "disturbed.pt")
        finally:
            del os.environ["POPTORCH_FAULTS"]
    assert same(asdict(reached), asdict(expected)), "the states differ"
    return resets


def main() -> None:
    """Both optimizers, with the same failures."""
    faults = os.environ.get("POPTORCH_FAULTS", FAULTS)
    for name, make_optimizer in OPTIMIZERS.items():
        print(name)
        resets = compare(make_optimizer, faults)
        print(f"  the same bits after {resets} resets")


if __name__ == "__main__":
    main()
