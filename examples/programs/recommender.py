"""A recommender: embedding bags of what people liked, and of what there is.

Each person likes films of two kinds out of eight. The model sees five films that somebody liked and another one, and
says whether that will be liked. Embeddings are on the first IPU, the rest of the model is on the second: a pipeline.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

FILMS, KINDS, LIKED, EPOCHS = 80, 8, 5, 8


def visits(count: int, random: torch.Generator) -> TensorDataset:
    """Films that somebody liked, another film, and whether it is of a kind that this person likes."""
    tastes = torch.stack([torch.randperm(KINDS, generator=random)[:2] for _ in range(count)])
    chosen = tastes.gather(1, torch.randint(0, 2, (count, LIKED), generator=random))
    history = chosen + KINDS * torch.randint(0, FILMS // KINDS, (count, LIKED), generator=random)
    good = torch.rand(count, generator=random) < 0.5
    film = torch.randint(0, FILMS, (count,), generator=random)
    likely = tastes[:, 0] + KINDS * torch.randint(0, FILMS // KINDS, (count,), generator=random)
    film = torch.where(good, likely, film)
    return TensorDataset(history, film, (tastes == film[:, None] % KINDS).any(1).float())


class Recommender(nn.Module):
    """Compares the bag of liked films with a film."""

    def __init__(self) -> None:
        super().__init__()
        self.history = nn.EmbeddingBag(FILMS, 16, mode="mean")
        self.film = nn.Embedding(FILMS, 16)
        self.head = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))
        poptorch.BeginBlock(self.head, ipu_id=1)

    def forward(self, history: torch.Tensor, film: torch.Tensor, liked: torch.Tensor | None = None) -> object:
        taste, offered = self.history(history), self.film(film)
        score = self.head(torch.cat([taste, offered, taste * offered], 1)).squeeze(1)
        if liked is None:
            return score
        return score, nn.functional.binary_cross_entropy_with_logits(score, liked)


def main() -> dict[str, Any]:
    """Do all of it; returns what the gallery draws."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    model = Recommender()
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(4)  # a pipeline is busy with several micro-batches
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=2e-2))
    loader = poptorch.DataLoader(options, visits(6144, random), batch_size=64, shuffle=True)
    for epoch in range(EPOCHS):
        bar = tqdm(loader, desc=f"epoch {epoch + 1}/{EPOCHS}")
        for history, film, liked in bar:
            _, loss = training(history, film, liked)
            bar.set_postfix(loss=f"{loss.mean().item():.3f}")

    history, film, liked = visits(1024, random).tensors
    inference = poptorch.inferenceModel(model.eval(), poptorch.Options().deviceIterations(4))
    right = ((inference(history, film) > 0) == liked.bool()).float().mean().item()
    print(f"{right:.1%} of new recommendations are right, {time.perf_counter() - begun:.1f} s")
    assert right > 0.75
    return {"films": model.film.weight.detach(), "kinds": KINDS}


if __name__ == "__main__":
    main()
