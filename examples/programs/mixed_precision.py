"""Mixed precision: float16 where it is enough, float32 where it is not, and what loss scaling is for.

The same network learns to tell noisy signals apart in four ways. Its gradients are small, so that float16 alone rounds
many of them to zero; a factor on the loss brings them back into the range of float16, and the update divides by it.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

KINDS, LENGTH, EPOCHS = 6, 32, 4
SMALL = 2.0**-20
"""The network's loss is so small: think of one that is a mean over very many elements."""


class Classifier(nn.Module):
    """A few layers on a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(LENGTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, KINDS)
        )  # fmt: skip

    def forward(self, signals: torch.Tensor, kinds: torch.Tensor | None = None) -> Any:
        scores = self.layers(signals)
        if kinds is None:
            return scores
        # The exponentials of a cross entropy are taken in float32, whatever the type of the network is.
        loss = nn.functional.cross_entropy(scores.float(), kinds)
        return loss, poptorch.identity_loss(SMALL * loss, reduction="none")


def signals(count: int, random: torch.Generator) -> TensorDataset:
    """Waves of different frequencies with random phases, and noise."""
    kinds = torch.randint(0, KINDS, (count,), generator=random)
    phases = 2 * torch.pi * torch.rand(count, 1, generator=random)
    waves = torch.sin(phases + (0.3 + 0.2 * kinds[:, None]) * torch.arange(LENGTH))
    return TensorDataset(waves + 1.0 * torch.randn(waves.shape, generator=random), kinds)


def train(name: str, half_weights: bool, half_data: bool, loss_scaling: float) -> tuple[list[float], float, float, int]:
    """Losses, the share of new signals that are told apart, of gradients that are zero, and bytes of weights."""
    torch.manual_seed(0)
    model = Classifier()
    if half_weights:
        model.half()  # weights, activations and gradients in float16
    options = poptorch.Options()
    # Weights that are float32 and data that are float16 are "mixed": products are computed in float16, and updates,
    # which are much smaller than weights, are added up in float32. With float16 weights, stochastic rounding does not
    # lose them: it rounds up or down at random, so that small updates count on average.
    options.Precision.enableStochasticRounding(half_weights)
    for layer in (0, 2, 4):
        options.anchorTensor(f"gradient {layer}", f"Gradient___layers.{layer}.weight")
    # The update divides gradients by the loss scaling. Those that are accumulated in float16 are made float32 before
    # that; otherwise they would vanish after all. (Where weights are float32, they are float32 already.)
    optimizer = poptorch.optim.AdamW(
        model.parameters(), lr=3e-3, eps=1e-12, weight_decay=0.0, loss_scaling=loss_scaling,
        accum_type=torch.float16 if half_weights else torch.float32,
    )  # fmt: skip
    training = poptorch.trainingModel(model, options, optimizer)
    data = signals(1024, torch.Generator().manual_seed(1))
    losses = []
    bar = tqdm(poptorch.DataLoader(options, data, batch_size=32), desc=name, total=EPOCHS * 32)
    for _ in range(EPOCHS):
        for batch, kinds in bar.iterable:
            loss, _ = training(batch.half() if half_data else batch, kinds)
            losses.append(loss.item())
            bar.set_postfix(loss=f"{losses[-1]:.3f}")
            bar.update()
    bar.close()
    gradients = torch.cat([training.getAnchoredTensor(f"gradient {layer}").flatten() for layer in (0, 2, 4)])
    new, kinds = signals(512, torch.Generator().manual_seed(2)).tensors
    scores = poptorch.inferenceModel(model.eval())(new.half() if half_data else new)
    right = (scores.argmax(1) == kinds).float().mean().item()
    size = sum(weight.nbytes for weight in model.parameters())
    return losses, right, (gradients == 0).float().mean().item(), size


def main() -> dict[str, Any]:
    """Train in all ways; returns what the gallery draws."""
    begun = time.perf_counter()
    ways = {
        "float32": train("float32", False, False, 1.0),
        "mixed": train("mixed", False, True, 1.0),
        "mixed, scaled": train("mixed, scaled", False, True, 1 / SMALL),
        "float16, scaled": train("float16, scaled", True, True, 1 / SMALL),
    }
    print(f"{'way':16} {'right':>6} {'zero gradients':>15} {'weights':>8}")
    for name, (_, right, zeros, size) in ways.items():
        print(f"{name:16} {right:6.1%} {zeros:15.1%} {size / 1024:5.0f} KiB")
    print(f"{time.perf_counter() - begun:.1f} s")
    assert ways["mixed"][2] > 0.9, "without scaling, gradients vanish"
    assert ways["mixed"][1] < ways["mixed, scaled"][1] - 0.2
    assert min(ways["mixed, scaled"][1], ways["float16, scaled"][1]) > ways["float32"][1] - 0.05
    assert ways["float16, scaled"][3] == ways["float32"][3] / 2
    return ways


if __name__ == "__main__":
    main()
