"""First steps: a small convolutional network learns to read digits.

The digits are drawn here: glyphs of 5 by 7 dots at random places of a small picture, with noise. What a program for
IPUs needs beyond plain PyTorch is marked with (1) to (4).
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

GLYPHS = (
    "01110100011001110101110011000101110", "00100011000010000100001000010001110",
    "01110100010000100010001000100011111", "11111000100010000010000011000101110",
    "00010001100101010010111110001000010", "11111100001111000001000011000101110",
    "00110010001000011110100011000101110", "11111000010001000100010000100001000",
    "01110100011000101110100011000101110", "01110100011000101111000010001001100",
)  # fmt: skip
EPOCHS = 10


def draw(count: int, random: torch.Generator) -> TensorDataset:
    """Pictures of 12 by 12 dots, and the digits in them."""
    glyphs = torch.tensor([[float(dot) for dot in glyph] for glyph in GLYPHS]).reshape(10, 7, 5)
    labels = torch.randint(0, 10, (count,), generator=random)
    pictures = 0.2 * torch.randn(count, 1, 12, 12, generator=random)
    for picture, label in zip(pictures, labels, strict=True):
        top, left = torch.randint(0, 6, (), generator=random), torch.randint(0, 8, (), generator=random)
        picture[0, top : top + 7, left : left + 5] += glyphs[label]
    return TensorDataset(pictures, labels)


class Reader(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(32 * 9, 10)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor | None = None) -> object:
        scores = self.head(self.features(pictures))
        if labels is None:
            return scores
        # (1) The loss is part of the model: forward, backward and update are one program.
        return scores, nn.functional.cross_entropy(scores, labels)


def main() -> dict[str, Any]:
    """Do all of it; returns what the gallery draws."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    model = Reader()

    # (2) Options say how the program uses IPUs: 4 updates in each call.
    options = poptorch.Options().deviceIterations(4)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=5e-3)
    training = poptorch.trainingModel(model, options, optimizer)

    # (3) The loader makes batches of the size of a call: 32 pictures for each of the 4 updates.
    loader = poptorch.DataLoader(options, draw(2048, random), batch_size=32, shuffle=True)
    for epoch in range(EPOCHS):
        bar = tqdm(loader, desc=f"epoch {epoch + 1}/{EPOCHS}")
        for pictures, labels in bar:
            _, loss = training(pictures, labels)
            bar.set_postfix(loss=f"{loss.item():.3f}")

    # (4) Inference is a program of its own; it takes the weights that were trained.
    inference = poptorch.inferenceModel(model.eval())
    pictures, labels = draw(512, random).tensors
    right = (inference(pictures).argmax(1) == labels).float().mean().item()
    print(f"reads {right:.1%} of new digits after {EPOCHS} epochs, {time.perf_counter() - begun:.1f} s")
    assert right > 0.9
    return {"pictures": pictures, "read": inference(pictures).argmax(1)}


if __name__ == "__main__":
    main()
