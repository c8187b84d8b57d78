"""Three ways to say which IPU a layer runs on. All give the same program, and the same numbers as one IPU."""

from __future__ import annotations

import torch
from torch import nn

import poptorch


class Classifier(nn.Module):
    """Nothing in here knows of IPUs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(self.features(x))
        return scores, nn.functional.cross_entropy(scores, labels)


def annotated_layers() -> nn.Module:
    """An existing model: the head starts a new block, which lasts until the next annotation."""
    model = Classifier()
    poptorch.BeginBlock(model.head, ipu_id=1)
    return model


class InlineClassifier(Classifier):
    """Blocks inside ``forward``: every operation is in one of them."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("features", ipu_id=0):
            hidden = self.features(x)
        with poptorch.Block("head", ipu_id=1):
            scores = self.head(hidden)
            return scores, nn.functional.cross_entropy(scores, labels)


class DecoratedClassifier(Classifier):
    """Blocks around functions."""

    @poptorch.BlockFunction("features", ipu_id=0)
    def extract(self, x: torch.Tensor) -> torch.Tensor:
        return self.features(x)

    @poptorch.BlockFunction("head", ipu_id=1)
    def classify(self, hidden: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(hidden)
        return scores, nn.functional.cross_entropy(scores, labels)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.classify(self.extract(x), labels)


def losses(model: nn.Module, steps: int = 3) -> list[float]:
    """Train with four micro-batches per update: a two-stage pipeline needs at least three."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.5))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 16, generator=generator)
    labels = torch.randint(0, 4, (32,), generator=generator)
    found = [training(x, labels)[1].item() for _ in range(steps)]
    training.destroy()
    return found


def main() -> None:
    expected = losses(Classifier())
    print(f"{'one IPU':<20}", ", ".join(f"{loss:.4f}" for loss in expected))
    models = {
        "annotated layers": annotated_layers(),
        "blocks inside": InlineClassifier(),
        "decorated functions": DecoratedClassifier(),
    }
    for name, model in models.items():
        found = losses(model)
        # The same computation, but other groups of additions: the last bits may differ.
        assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-4), f"{name}: {found}"
        print(f"{name:<20}", ", ".join(f"{loss:.4f}" for loss in found))


if __name__ == "__main__":
    main()
