"""A transformer in a pipeline over four IPUs: where its parts run, what runs when, and that results stay the same.

The task is to sort: the model reads numbers and writes them in order. It is trained twice from the same weights, on
one IPU and in the pipeline. The losses are the same, as annotations say where something runs, not what it computes.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

NUMBERS, LENGTH, WIDTH, LAYERS = 16, 6, 32, 4
MICRO_BATCHES, EPOCHS = 8, 6


class Sorter(nn.Module):
    """An encoder, as torch has it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUMBERS, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, NUMBERS)

    def forward(self, numbers: torch.Tensor, ordered: torch.Tensor | None = None) -> Any:
        values = self.embedding(numbers) + self.place
        for layer in self.layers:
            values = layer(values)
        scores = self.head(values)  # (rows, LENGTH, NUMBERS)
        return scores if ordered is None else nn.functional.cross_entropy(scores.flatten(0, 1), ordered.flatten())


def in_four_parts(model: Sorter) -> None:
    """Say where the parts begin. What follows a beginning belongs to it, until the next one."""
    # The embedding comes first and is on IPU 0, with the first layer. The head comes last and is on IPU 3.
    for ipu, layer in enumerate(model.layers):
        poptorch.BeginBlock(layer, f"layer {ipu}", ipu_id=ipu)
    poptorch.BeginBlock(model.embedding, "embedding", ipu_id=0)


def data(count: int, random: torch.Generator) -> TensorDataset:
    """Numbers, and the same numbers in order."""
    numbers = torch.randint(0, NUMBERS, (count, LENGTH), generator=random)
    return TensorDataset(numbers, numbers.sort(1).values)


def train(model: Sorter, epochs: int, name: str) -> tuple[list[float], poptorch.PoplarExecutor]:
    """The losses of all calls, and the wrapped model."""
    options = poptorch.Options()
    # All IPUs are busy only while there are enough micro-batches under way. A pipeline of four stages needs at least
    # seven for each update in training; with more of them, a smaller share of the time is spent on fill and drain.
    options.Training.gradientAccumulation(MICRO_BATCHES)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.outputMode(poptorch.OutputMode.All)  # the losses of all micro-batches, not only of the last one
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=4e-3))
    loader = poptorch.DataLoader(options, data(2048, torch.Generator().manual_seed(1)), batch_size=16)
    losses = []
    bar = tqdm(total=epochs * len(loader), desc=name)
    for _ in range(epochs):
        for numbers, ordered in loader:
            losses.append(training(numbers, ordered).mean().item())
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
            bar.update()
    bar.close()
    return losses, training


def main() -> dict[str, Any]:
    """Train on one IPU and on four; returns what the gallery draws."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    alone = Sorter()
    model = Sorter()
    model.load_state_dict(alone.state_dict())
    in_four_parts(model)

    expected, _ = train(alone, 1, "one IPU")
    losses, training = train(model, EPOCHS, "four IPUs")
    chart = training.drawSchedule()
    print(chart)
    training.detachFromDevice()  # inference takes the same four IPUs

    # Without a backward pass, a pipeline is full with as many micro-batches as it has stages: device iterations.
    options = poptorch.Options().deviceIterations(LAYERS)
    numbers, ordered = data(512, torch.Generator().manual_seed(2)).tensors
    found = poptorch.inferenceModel(model.eval(), options)(numbers).argmax(-1)
    right = (found == ordered).float().mean().item()
    print(f"{numbers[0].tolist()} in order: {found[0].tolist()}")
    different = max(abs(one - other) for one, other in zip(expected, losses, strict=False))
    print(f"losses on one IPU and on four differ by at most {different:.1e}")
    print(f"{right:.1%} of the numbers are in their places, {time.perf_counter() - begun:.1f} s")
    assert different < 1e-4
    assert right > 0.9
    return {"expected": expected, "losses": losses, "training": training, "chart": chart}


if __name__ == "__main__":
    main()
