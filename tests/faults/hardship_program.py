"""A program that uses everything that writes files, under conditions of its caller's choice.

Usage: ``hardship_program.py <folder> <what>``. Prints the digest of the weights after the training, and a line for each
file that could not be saved.

- ``none``: nothing is wrong.
- ``full=<bytes>``: no file can grow beyond that size, as on a disk that is full.
- ``clock``: the clock of the day jumps by up to a year, forwards and backwards, at each look at it.
- ``signals=<number>``: so many signals with a handler arrive at random moments.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import poptorch


class Items(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((64,), float(index % 7)), torch.tensor(index % 3)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 3))

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layers(x)
        return y, nn.functional.cross_entropy(y, label)


def disk_is_full(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def clock_jumps() -> None:
    real, chosen = time.time, random.Random(1)
    time.time = lambda: real() + chosen.uniform(-1, 1) * 365 * 86_400


class Signals:
    """Signals to this process, one after the other, as long as there are some left."""

    def __init__(self, count: int) -> None:
        self.left, self.arrived, self._chosen = count, 0, random.Random(2)
        signal.signal(signal.SIGALRM, self._next)
        signal.signal(signal.SIGUSR1, lambda *unused: None)
        self._arm()

    def _arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._chosen.uniform(0.0005, 0.01))

    def _next(self, *unused: object) -> None:
        self.arrived += 1
        self.left -= 1
        os.kill(os.getpid(), signal.SIGUSR1)
        if self.left > 0:
            self._arm()


def train(folder: Path, signals: Signals | None, workers: int) -> None:
    torch.manual_seed(3)
    options = poptorch.Options().deviceIterations(2).randomSeed(5).enableExecutableCaching(str(folder / "cache"))
    options.Training.gradientAccumulation(2)
    options.enableProfiling(str(folder / "reports"))
    model = Classifier()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    executor = poptorch.trainingModel(model, options, optimizer)
    loader = poptorch.DataLoader(options, Items(), 3, num_workers=workers)
    for epoch in itertools.count():
        for x, label in loader:
            executor(x, label)
        try:
            executor.save(str(folder / "saved.poptorch"))
        except poptorch.Error as error:
            print("not saved:", str(error).splitlines()[0][:200])
        if epoch >= 1 and (signals is None or signals.left <= 0):
            break
        if epoch == 1 and signals is not None:
            break_after(signals)
            break
    executor.destroy()
    values = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    print("weights", hashlib.sha256(values).hexdigest())


def break_after(signals: Signals) -> None:
    """Let the rest of the signals come while models are compiled and destroyed."""
    while signals.left > 0:
        layer = nn.Linear(4, 4)
        executor = poptorch.inferenceModel(layer)
        got = executor(torch.ones(2, 4))
        assert torch.allclose(got, layer(torch.ones(2, 4)), atol=1e-5)
        executor.destroy()


def main() -> None:
    folder, (what, _, number) = Path(sys.argv[1]), sys.argv[2].partition("=")
    signals = None
    if what == "full":
        disk_is_full(int(number))
    elif what == "clock":
        clock_jumps()
    elif what == "signals":
        signals = Signals(int(number))
    train(folder, signals, workers=0 if what == "full" else 1)  # shared memory is made of files, too
    if signals is not None:
        print("signals", signals.arrived)


if __name__ == "__main__":
    main()
