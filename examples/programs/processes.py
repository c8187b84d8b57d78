"""Several processes: two of them train one model, each on its own part of the data.

Any launcher starts such a job (`torchrun --nproc-per-node 2 processes.py`, `mpirun`, `poprun`). Without one, the
program starts its two processes itself. Gradients are averaged over the replicas of all processes before each update,
so both have the same weights all the time, bit for bit, though they never send any. One process with four replicas is
the same job; only its data come in another order.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

EPOCHS, PROCESSES, REPLICAS = 6, 2, 4


class Network(nn.Module):
    """Says in which quarter of a turn the hand of a clock is, from noisy marks around the dial."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))

    def forward(self, marks: torch.Tensor, quarters: torch.Tensor | None = None) -> Any:
        scores = self.layers(marks)
        return scores if quarters is None else nn.functional.cross_entropy(scores, quarters)


def clocks(count: int, random: torch.Generator) -> TensorDataset:
    """What 24 sensors around a dial see."""
    angle = 2 * torch.pi * torch.rand(count, 1, generator=random)
    marks = torch.cos(angle - torch.arange(24) / 24 * 2 * torch.pi).clamp(min=0) ** 4
    return TensorDataset(marks + 0.3 * torch.randn(marks.shape, generator=random), (angle[:, 0] * 2 / torch.pi).long())


def train() -> tuple[Network, list[float]]:
    """Train as one of however many processes there are. Nothing here depends on their number but the replicas."""
    # The launcher has said in the environment which process this is; Options reads it. All processes need the same
    # seed: it decides about the order of the data, and dropout differs between all replicas of all processes.
    options = poptorch.Options().randomSeed(42)
    options.replicationFactor(REPLICAS // options.Distributed.numProcesses)
    options.outputMode(poptorch.OutputMode.All)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    torch.manual_seed(0)
    model = Network()
    data = clocks(1024, torch.Generator().manual_seed(1))
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=5e-3)
    training = poptorch.trainingModel(model, options, optimizer)
    first = options.Distributed.processId == 0
    # The loader gives each process its own part of every epoch.
    loader = poptorch.DataLoader(options, data, batch_size=16)
    losses = []
    with tqdm(
        total=EPOCHS * len(loader), disable=not first, desc=f"{options.Distributed.numProcesses} process(es)"
    ) as bar:
        for _ in range(EPOCHS):
            for marks, quarters in loader:
                losses.append(training(marks, quarters).mean().item())  # of the replicas of this process
                bar.set_postfix(loss=f"{losses[-1]:.3f}")
                bar.update()
    return model, losses


def digest(model: nn.Module) -> str:
    """A short text that says whether weights have the same bits."""
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()[:16]


def job() -> list[tuple[str, list[float]]]:
    """Start the processes as a launcher does; read the digest of the weights and the losses of each."""
    running = []
    for process in range(PROCESSES):
        place = {"OMPI_COMM_WORLD_RANK": str(process), "OMPI_COMM_WORLD_SIZE": str(PROCESSES)}
        command = [sys.executable, __file__]
        running.append(subprocess.Popen(command, env={**os.environ, **place}, stdout=subprocess.PIPE, text=True))
    said = [process.communicate()[0].split() for process in running]
    assert all(process.returncode == 0 for process in running)
    return [(words[0], [float(loss) for loss in words[1:]]) for words in said]


def main() -> dict[str, Any]:
    """Train in two processes and in one; returns what the gallery draws."""
    begun = time.perf_counter()
    parts = job()
    model, alone = train()
    marks, quarters = clocks(512, torch.Generator().manual_seed(2)).tensors
    right = (poptorch.inferenceModel(model.eval())(marks).argmax(1) == quarters).float().mean().item()
    print(f"weights of the processes: {parts[0][0]} and {parts[1][0]}")
    ends = [sum(losses[-8:]) / 8 for losses in (parts[0][1], parts[1][1], alone)]
    print(f"the last losses: {ends[0]:.3f} and {ends[1]:.3f} in two processes, {ends[2]:.3f} in one")
    print(f"reads {right:.1%} of new clocks, {time.perf_counter() - begun:.1f} s")
    assert parts[0][0] == parts[1][0]
    assert abs(ends[0] + ends[1] - 2 * ends[2]) < 0.1
    assert right > 0.85
    return {"parts": [losses for _, losses in parts], "alone": alone}


if __name__ == "__main__":
    if poptorch.Options().Distributed.numProcesses == 1:
        main()
    else:
        trained, history = train()
        print(digest(trained), *history)
