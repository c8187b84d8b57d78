"""Compile on one machine, run on another: a process without IPUs writes a file, another one trains with it.

The first process compiles for an offline target; it never attaches to a device. The second one loads the program from
the file, with its own weights and data, and trains at once. A third step exports a trained model with its weights.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

import poptorch

CALLS, ROWS = 60, 32


class Network(nn.Module):
    """Says whether three numbers can be the sides of a triangle."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, sides: torch.Tensor, possible: torch.Tensor | None = None) -> Any:
        scores = self.layers(sides)
        return scores if possible is None else (scores, nn.functional.cross_entropy(scores, possible))


def triangles(count: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Sides, and whether the longest is shorter than the two others together."""
    sides = torch.rand(count, 3, generator=random)
    return sides, (2 * sides.max(1).values < sides.sum(1)).long()


def wrapped(offline: bool) -> tuple[Network, poptorch.PoplarExecutor]:
    """The model, and the same wrapped for training."""
    torch.manual_seed(0)
    model = Network()
    options = poptorch.Options().deviceIterations(8)
    if offline:
        options.useOfflineIpuTarget()  # compile, but never attach
    return model, poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=5e-3))


def compile_only(path: Path) -> None:
    """What the machine without IPUs does. Shapes matter here, values do not."""
    _, training = wrapped(offline=True)
    begun = time.perf_counter()
    # The program alone: weights and optimizer come from whoever loads it.
    training.compileAndExport(
        path, torch.zeros(8 * ROWS, 3), torch.zeros(8 * ROWS, dtype=torch.long), export_model=False
    )
    print(f"compiled for {path.stat().st_size / 1024:.0f} KiB in {time.perf_counter() - begun:.1f} s", flush=True)


def main() -> dict[str, Any]:
    """Compile elsewhere, train, export; returns what the gallery draws."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "training.poptorch"
        other = multiprocessing.get_context("spawn").Process(target=compile_only, args=(program,))
        other.start()  # "another machine"
        other.join()
        assert other.exitcode == 0

        model, training = wrapped(offline=False)
        loading = time.perf_counter()
        training.loadExecutable(program)  # the graph is compared with that of our model
        print(f"loaded in {time.perf_counter() - loading:.1f} s")
        random = torch.Generator().manual_seed(1)
        losses = []
        bar = tqdm(range(CALLS), desc="training")
        for _ in bar:
            losses.append(training(*triangles(8 * ROWS, random))[1].item())
            bar.set_postfix(loss=f"{losses[-1]:.3f}")

        # A model that is done: one file with program and weights. `poptorch.load` is all that its user needs.
        finished = Path(folder) / "inference.poptorch"
        sides, possible = triangles(512, random)
        exported = poptorch.inferenceModel(model.eval())
        exported.compileAndExport(finished, sides)
        inference = poptorch.load(finished)
        right = (inference(sides).argmax(1) == possible).float().mean().item()
        size = finished.stat().st_size
    print(f"{right:.1%} of new triangles with a model of {size / 1024:.0f} KiB, {time.perf_counter() - begun:.1f} s")
    assert right > 0.95
    return {"losses": losses}


if __name__ == "__main__":
    main()
