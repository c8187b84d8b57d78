"""Trains a classifier of drawn digits on a virtual IPU and shows that PyTorch, step by step, learns the very same.

Everything a PopTorch program usually does, in one screen: options, a data loader, a model that computes its loss,
a training model, an inference model that shares its weights.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

# Five columns by seven rows for each digit, a bit for each pixel.
GLYPHS = """
01110 00100 01110 11111 00010 11111 00110 11111 01110 01110
10001 01100 10001 00010 00110 10000 01000 00001 10001 10001
10011 00100 00001 00100 01010 11110 10000 00010 10001 10001
10101 00100 00010 00010 10010 00001 11110 00100 01110 01111
11001 00100 00100 00001 11111 00001 10001 01000 10001 00001
10001 00100 01000 10001 00010 10001 10001 01000 10001 00010
01110 01110 11111 01110 00010 01110 01110 01000 01110 01100
"""

SIZE = 14  # pixels of an image, in both directions
BATCH = 32  # images that the model sees at once
ITERATIONS = 8  # batches, and weight updates, of one call
EPOCHS = 5
REPORTS = Path(__file__).resolve().parent.parent / "build" / "demo"  # a page about the training program goes there


def draw_digits(count: int, generator: torch.Generator) -> TensorDataset:
    """Images of digits at random places, of random brightness and stroke, under noise; with their labels."""
    rows = [line.split() for line in GLYPHS.split("\n") if line]
    glyphs = torch.tensor([[[float(bit) for bit in row[digit]] for row in rows] for digit in range(10)])
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.zeros(count, 1, SIZE, SIZE)
    corners = torch.randint(0, SIZE - 8, (count, 2), generator=generator)
    for image, label, (x, y) in zip(images, labels, corners.tolist(), strict=True):
        image[0, y : y + 7, x : x + 5] = glyphs[label]
    thick = nn.functional.max_pool2d(images, 2, stride=1)
    is_thick = torch.rand(count, 1, 1, 1, generator=generator) < 0.3
    images = torch.where(is_thick, nn.functional.pad(thick, (0, 1, 0, 1)), images)
    brightness = 0.6 + 0.8 * torch.rand(count, 1, 1, 1, generator=generator)
    noise = 0.15 * torch.randn(images.shape, generator=generator)
    return TensorDataset(images * brightness + noise, labels.int())


class Classifier(nn.Module):
    """Two convolutions and a linear layer; with labels, also the loss: that is what a training model needs."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(24 * 3 * 3, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None):
        logits = self.head(self.features(images).flatten(1))
        if labels is None:
            return logits
        return logits, nn.functional.cross_entropy(logits, labels.long())


class EagerTraining:
    """The same training in plain PyTorch, to compare with."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = []
        for few, of_them in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            self.optimizer.zero_grad()
            _, loss = self.model(few, of_them)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9)


def slow_down(optimizer: torch.optim.Optimizer) -> None:
    """The last epoch learns the details."""
    for group in optimizer.param_groups:
        group["lr"] /= 10


def train(model: Classifier, data: TensorDataset) -> tuple[list[tuple[float, float]], poptorch.ipu_model.Estimate]:
    """Train on the device and in PyTorch with the same batches.

    Returns both mean losses of each call, and what the IPU Model says of the training program.
    """
    options = poptorch.Options().deviceIterations(ITERATIONS).outputMode(poptorch.OutputMode.All)
    options.enableProfiling(str(REPORTS))
    loader = poptorch.DataLoader(
        options, data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    twin = copy.deepcopy(model)
    eager = EagerTraining(twin, optimizer_of(twin))
    optimizer = optimizer_of(model)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)

    curve = []
    with tqdm(total=EPOCHS * len(loader), unit="call", disable=None) as progress:  # None: only on a terminal
        for epoch in range(EPOCHS):
            if epoch == EPOCHS - 1:
                slow_down(optimizer)
                slow_down(eager.optimizer)
                training.setOptimizer(optimizer)  # the device takes over the new learning rate
            for images, labels in loader:
                _, losses = training(images, labels)  # one call: several batches, several weight updates
                expected = eager(images, labels)
                # Rounding differs in the last bits, and every update adds to that: three digits agree on any processor.
                assert torch.allclose(losses, expected, rtol=1e-3, atol=1e-4), f"{losses} is not {expected}"
                curve.append((losses.mean().item(), expected.mean().item()))
                progress.set_postfix(loss=f"{curve[-1][0]:.4f}")
                progress.update()
    print(f"The training program: {len(list(training.program.operations()))} operations for one batch of {BATCH}.")
    estimate = poptorch.ipu_model.estimate(training)  # what the same program would take on silicon
    training.destroy()  # the weights are in the model; the report is complete
    return curve, estimate


def accuracy(model: Classifier, data: TensorDataset) -> float:
    """The share of correct answers, by an inference model; it takes over what the training model has learned."""
    model.eval()
    options = poptorch.Options().deviceIterations(4)
    inference = poptorch.inferenceModel(model, options)
    loader = poptorch.DataLoader(options, data, batch_size=BATCH)
    correct = total = 0
    for images, labels in loader:
        correct += int((inference(images).argmax(1) == labels).sum())
        total += len(labels)
    return correct / total


def main() -> None:
    """Train, compare, evaluate."""
    start = time.perf_counter()
    torch.set_num_threads(1)  # images this small are not worth sharing between cores
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Classifier()
    print(f"poptorch {poptorch.__version__}, virtual IPUs of generation {poptorch.ipuHardwareVersion()}\n")
    curve, estimate = train(model, draw_digits(3072, generator))

    print(f"\nMean loss of each call ({ITERATIONS} weight updates):\n\n  call  poptorch   PyTorch")
    for call, (ours, theirs) in enumerate(curve):
        if call % 9 == 0 or call == len(curve) - 1:
            print(f"  {call:4d}  {ours:8.4f}  {theirs:8.4f}")
    print("All losses agree to four digits.")

    share = accuracy(model, draw_digits(512, generator))
    print(f"\nAccuracy on digits never seen: {share:.1%}")
    assert share > 0.95, "expected more than 95 %"
    print(f"{time.perf_counter() - start:.1f} seconds in all.")
    print("\nWhat the same training program would take on silicon, as the IPU Model predicts it:\n")
    print(estimate)
    page = REPORTS / "training" / "report.html"
    if page.exists():
        print(f"\nMemory, operations and times of it, for your browser: {page}")


if __name__ == "__main__":
    main()
