"""A variational autoencoder: random numbers inside of a program, and two programs from one model.

It learns to describe pictures of arcs with two numbers each. The encoder says where a picture lies and how certainly;
a random number is drawn there, on the device; the decoder draws the picture again. Later the decoder alone makes new
pictures: a part of the model is wrapped for inference, with the weights that were trained.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

SIZE, EPOCHS = 16, 12


def arcs(count: int, random: torch.Generator) -> TensorDataset:
    """Pictures of an arc of a circle around the middle: where it begins, and its radius."""
    angle = 2 * torch.pi * torch.rand(count, 1, 1, generator=random)
    radius = 3 + 4 * torch.rand(count, 1, 1, generator=random)
    place = torch.arange(SIZE) - (SIZE - 1) / 2
    y, x = torch.meshgrid(place, place, indexing="ij")
    near = torch.exp(-((torch.hypot(x, y) - radius).square()))
    ahead = (x * angle.cos() + y * angle.sin()) / torch.hypot(x, y)
    return TensorDataset((near * (ahead > 0.3)).flatten(1))


class Autoencoder(nn.Module):
    """Pictures to two numbers and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIZE * SIZE, 128), nn.ReLU(), nn.Linear(128, 2 * 2))
        self.decoder = nn.Sequential(
            nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, SIZE * SIZE), nn.Sigmoid()
        )

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        middle, width = self.encoder(pictures).chunk(2, 1)
        # Drawn on the device: another number for each call, row and replica. `randomSeed` makes them repeatable.
        numbers = middle + torch.exp(width / 2) * torch.randn_like(middle)
        drawn = self.decoder(numbers)
        wrong = nn.functional.mse_loss(drawn, pictures, reduction="none").sum(1).mean()
        distance = 0.5 * (middle.square() + width.exp() - 1 - width).sum(1).mean()
        # A loss that torch does not know is marked; the other results are for us to look at.
        return poptorch.identity_loss(wrong + 0.05 * distance, reduction="none"), wrong, distance


def main() -> dict[str, Any]:
    """Train, then draw; returns what the gallery draws."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    model = Autoencoder()
    options = poptorch.Options().deviceIterations(8).randomSeed(3)
    options.outputMode(poptorch.OutputMode.Sum)  # one number for all eight updates of a call
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=3e-3))
    loader = poptorch.DataLoader(options, arcs(2048, random), batch_size=32, shuffle=True)
    history = []
    bar = tqdm(total=EPOCHS * len(loader), desc="training")
    for _ in range(EPOCHS):
        for (pictures,) in loader:
            history.append([value.item() / 8 for value in training(pictures)])
            bar.set_postfix(wrong=f"{history[-1][1]:.2f}", distance=f"{history[-1][2]:.2f}")
            bar.update()
    bar.close()

    # The first look at weights of the encoder or decoder brings them from the device.
    encode, decode = poptorch.inferenceModel(model.encoder), poptorch.inferenceModel(model.decoder)
    new = arcs(256, random).tensors[0]
    numbers = encode(new)[:, :2].contiguous()
    wrong = (decode(numbers) - new).square().sum(1).mean().item()
    naive = (new - new.mean(0)).square().sum(1).mean().item()
    grid = torch.cartesian_prod(torch.linspace(-1.5, 1.5, 8), torch.linspace(-1.5, 1.5, 8))
    drawn = poptorch.inferenceModel(model.decoder)(grid)
    print(f"two numbers describe a new picture of {SIZE * SIZE} dots up to {wrong:.2f}; the mean picture: {naive:.2f}")
    print(f"{time.perf_counter() - begun:.1f} s")
    assert wrong < naive / 2
    return {"history": history, "drawn": drawn.reshape(8, 8, SIZE, SIZE)}


if __name__ == "__main__":
    main()
