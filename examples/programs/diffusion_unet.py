"""Diffusion: a small U-Net learns to take noise away, and then makes pictures out of noise alone.

Training adds noise of a random strength and asks which one it was. Sampling starts from noise and takes a little away,
24 times: the whole loop is one program on the device (``poptorch.for_loop``), not 24 calls.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

SIZE, STEPS, EPOCHS = 8, 24, 26
# How much of the picture is left after each step, from nearly all to nearly nothing.
LEFT = torch.cos(torch.linspace(0.05, 0.98, STEPS) * torch.pi / 2).square()


def crosses(count: int, random: torch.Generator) -> torch.Tensor:
    """Pictures of a horizontal and a vertical line, -1 to 1."""
    pictures = -torch.ones(count, 1, SIZE, SIZE)
    rows, columns = torch.randint(1, SIZE - 1, (2, count), generator=random)
    pictures[torch.arange(count), 0, rows] = 1
    pictures[torch.arange(count), 0, :, columns] = 1
    return pictures


class Block(nn.Module):
    """Two convolutions, told between them how much noise there is."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.norm, self.time = nn.GroupNorm(4, out), nn.Linear(16, out)

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.one(x)) + self.time(when)[:, :, None, None]
        return nn.functional.silu(self.two(nn.functional.silu(x)))


class UNet(nn.Module):
    """Down to half of the size and up again; what the way down saw is beside what comes up."""

    def __init__(self) -> None:
        super().__init__()
        self.when = nn.Embedding(STEPS, 16)
        self.down, self.middle, self.up = Block(1, 16), Block(16, 32), Block(48, 16)
        self.out = nn.Conv2d(16, 1, 1)
        self.register_buffer("left", LEFT)

    def noise(self, pictures: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """The noise in pictures that have been through so many steps."""
        when = self.when(step)
        high = self.down(pictures, when)
        low = self.middle(nn.functional.avg_pool2d(high, 2), when)
        return self.out(self.up(torch.cat([high, nn.functional.interpolate(low, scale_factor=2.0)], 1), when))

    def forward(self, pictures: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(pictures)  # drawn on the device
        left = self.left[step][:, None, None, None]
        return nn.functional.mse_loss(self.noise(left.sqrt() * pictures + (1 - left).sqrt() * noise, step), noise)


class Sampler(nn.Module):
    """Takes noise away step by step. A loop of the program: its body is compiled once."""

    def __init__(self, unet: UNet) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        def one(pictures: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            found = self.unet.noise(pictures, step)
            now, then = (self.unet.left[(step - ahead).clamp(min=0)][:, None, None, None] for ahead in (0, 1))
            clean = ((pictures - (1 - now).sqrt() * found) / now.sqrt()).clamp(-1, 1)
            found = (pictures - now.sqrt() * clean) / (1 - now).sqrt()
            return then.sqrt() * clean + (1 - then).sqrt() * found, step - 1

        step = torch.full((len(noise),), STEPS - 1)
        pictures, _ = poptorch.for_loop(STEPS, one, [noise, step])
        return pictures


def likeness(pictures: torch.Tensor) -> float:
    """How far pictures are from the nearest cross: the mean distance of a dot."""
    all_rows = torch.arange(1, SIZE - 1)
    every = -torch.ones(len(all_rows) ** 2, SIZE, SIZE)
    for index, (row, column) in enumerate(torch.cartesian_prod(all_rows, all_rows).tolist()):
        every[index, row] = every[index, :, column] = 1
    return (pictures - every).abs().mean((2, 3)).min(1).values.mean().item()


def main() -> dict[str, Any]:
    """Train, then make pictures; returns what the gallery draws."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    model = UNet()
    options = poptorch.Options().deviceIterations(4).randomSeed(5)
    options.outputMode(poptorch.OutputMode.Sum)
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=4e-3))
    data = TensorDataset(crosses(1024, random), torch.randint(0, STEPS, (1024,), generator=random))
    loader = poptorch.DataLoader(options, data, batch_size=32, shuffle=True)
    losses = []
    bar = tqdm(total=EPOCHS * len(loader), desc="training")
    for _ in range(EPOCHS):
        for pictures, steps in loader:
            losses.append(training(pictures, steps).item() / 4)
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
            bar.update()
    bar.close()

    noise = torch.randn(16, 1, SIZE, SIZE, generator=random)
    made = poptorch.inferenceModel(Sampler(model.eval()))(noise)
    far = likeness(made)
    print(f"made pictures are {far:.2f} from the nearest cross, noise is {likeness(noise.clamp(-1, 1)):.2f} away")
    print(f"{time.perf_counter() - begun:.1f} s")
    assert far < 0.2
    return {"noise": noise, "made": made, "losses": losses}


if __name__ == "__main__":
    main()
