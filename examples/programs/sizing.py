"""Sizing with the IPU Model: does a language model fit, how fast would it be, and how should it be divided?

The model has 42 million weights in float16, and none of them exists here: they lie on torch's meta device. The IPU
Model counts cycles and bytes of what IPUs would run, on one IPU and in pipelines.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

import poptorch

VOCABULARY, WIDTH, LAYERS, LENGTH = 16_384, 512, 8, 256
ROWS = 64
"""Rows for each weight update."""


class Language(nn.Module):
    """A decoder with the loss."""

    def __init__(self, ipus: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for place, layer in enumerate(self.layers):
            if ipus > 1 and place % (LAYERS // ipus) == 0:
                poptorch.BeginBlock(layer, ipu_id=place * ipus // LAYERS)
        if ipus > 1:
            poptorch.BeginBlock(self.words, ipu_id=0)

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        values = self.words(words)
        for layer in self.layers:
            values = layer(values)
        return nn.functional.cross_entropy(self.head(values).flatten(0, 1), following.flatten())


def estimate(ipus: int) -> Any:
    """What the IPU Model says about training on so many IPUs of a Bow machine."""
    with torch.device("meta"):
        model = Language(ipus).half()
        words = torch.empty(ROWS, LENGTH, dtype=torch.long)
    options = poptorch.Options()
    options.Training.gradientAccumulation(ROWS)  # micro-batches of one row
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4, loss_scaling=1024.0)
    return poptorch.ipu_model.estimate(model, options, words, words, optimizer=optimizer, arch="bow")


def main() -> dict[str, Any]:
    """Estimate all; returns what the gallery draws."""
    begun = time.perf_counter()
    estimates = {ipus: estimate(ipus) for ipus in tqdm((1, 2, 4), desc="estimates")}
    print(f"{'IPUs':>4} {'fits':>5} {'fullest tile':>13} {'rows/s':>8} {'idle':>6}  bound by")
    for ipus, found in estimates.items():
        fullest = max(ipu.peak_tile_bytes for ipu in found.ipus)
        print(
            f"{ipus:4} {'yes' if found.fits else 'no':>5} {fullest / 1024:9.0f} KiB {found.throughput:8.0f} "
            f"{found.bubble:6.0%}  {found.bound_by}"
        )
    print(f"{time.perf_counter() - begun:.1f} s")
    return {"estimates": estimates}


if __name__ == "__main__":
    main()
