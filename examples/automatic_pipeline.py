"""Let the model divide itself: four balanced stages, two replicas, and a picture of what ran when."""

from __future__ import annotations

import torch
from torch import nn

import poptorch


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(100, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(6)
        )
        self.head = nn.Linear(32, 100)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), target.flatten())


def main() -> None:
    options = poptorch.Options().replicationFactor(2)
    options.Training.gradientAccumulation(8)
    model = Encoder()
    micro_batch = torch.randint(0, 100, (2, 16)), torch.randint(0, 100, (2, 16))
    poptorch.autoPipeline(model, 4, micro_batch, options)

    training = poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=1e-3))
    tokens = torch.randint(0, 100, (2 * 8 * 2, 16))
    for step in range(3):
        print(f"step {step}: loss {training(tokens, tokens).mean():.4f}")
    print(training.drawSchedule("schedule.svg"))


if __name__ == "__main__":
    main()
