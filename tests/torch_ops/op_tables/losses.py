"""Losses (section 3.8)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from op_samples import Sample, between, bools, ints, normal, op
from torch import Tensor, nn
from torch.nn import functional as F

X = normal(4, 5)
Y = normal(4, 5, seed=1)
PROBABILITY = between(0.05, 0.95, 4, 5)
TARGET_PROBABILITY = between(0.05, 0.95, 4, 5, seed=1)
CLASSES = ints(0, 5, 4)
IMAGE = normal(2, 5, 3, 4)
IMAGE_CLASSES = ints(0, 5, 2, 3, 4)
SIGNS = bools(4, 5).float() * 2 - 1
VECTOR_SIGNS = bools(4).float() * 2 - 1
REDUCTIONS = ("mean", "sum", "none")


def reduced(name: str, make: Callable[..., nn.Module], *inputs: Tensor, **settings: object) -> list[Sample]:
    """One row for each reduction."""

    def row(reduction: str) -> Sample:
        loss = make(reduction=reduction, **settings)
        return op(f"{name} {reduction}", lambda *args: loss(*args), *inputs)

    return [row(r) for r in REDUCTIONS]


def log_probabilities(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """A loss that takes logarithms of probabilities, fed with log-softmax."""

    def make(**settings: object) -> nn.Module:
        loss = kind(**settings)
        return Composed(loss)

    return make


class Composed(nn.Module):
    """Log-softmax over dimension 1, then the loss."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(F.log_softmax(x, dim=1), target)


def ctc(blank: int, zero_infinity: bool, reduction: str) -> Callable[..., Tensor]:
    def loss(x: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        return F.ctc_loss(
            x.log_softmax(-1), targets, input_lengths, target_lengths,
            blank=blank, reduction=reduction, zero_infinity=zero_infinity,
        )  # fmt: skip

    return loss


CTC = (normal(12, 3, 6), ints(1, 5, 3, 4), torch.tensor([12, 10, 9]), torch.tensor([4, 3, 2]))
TOO_SHORT = (normal(12, 3, 6), ints(1, 5, 3, 4), torch.tensor([12, 10, 2]), torch.tensor([4, 3, 4]))

ROWS = [
    *reduced("L1Loss", nn.L1Loss, X, Y),
    *reduced("MSELoss", nn.MSELoss, X, Y),
    *reduced("SmoothL1Loss", nn.SmoothL1Loss, X, Y),
    *reduced("SmoothL1Loss beta", nn.SmoothL1Loss, X, Y, beta=0.5),
    *reduced("HuberLoss", nn.HuberLoss, X, Y, delta=0.7),
    *reduced("CrossEntropyLoss", nn.CrossEntropyLoss, X, CLASSES),
    *reduced("CrossEntropyLoss K-dim", nn.CrossEntropyLoss, IMAGE, IMAGE_CLASSES),
    *reduced("CrossEntropyLoss ignore", nn.CrossEntropyLoss, X, torch.tensor([0, 2, 2, 4]), ignore_index=2),
    *reduced("CrossEntropyLoss smoothing", nn.CrossEntropyLoss, X, CLASSES, label_smoothing=0.1),
    *reduced("CrossEntropyLoss weight", nn.CrossEntropyLoss, X, CLASSES, weight=between(0.5, 1.5, 5)),
    *reduced("CrossEntropyLoss probabilities", nn.CrossEntropyLoss, X, TARGET_PROBABILITY.softmax(1)),
    *reduced("NLLLoss", log_probabilities(nn.NLLLoss), X, CLASSES),
    *reduced("NLLLoss K-dim", log_probabilities(nn.NLLLoss), IMAGE, IMAGE_CLASSES),
    *reduced("NLLLoss ignore", log_probabilities(nn.NLLLoss), X, torch.tensor([0, 2, 2, 4]), ignore_index=2),
    *reduced("BCELoss", nn.BCELoss, PROBABILITY, TARGET_PROBABILITY),
    *reduced("BCELoss weight", nn.BCELoss, PROBABILITY, TARGET_PROBABILITY, weight=between(0.5, 1.5, 5)),
    *reduced("BCEWithLogitsLoss", nn.BCEWithLogitsLoss, X, TARGET_PROBABILITY),
    *reduced("BCEWithLogitsLoss large", nn.BCEWithLogitsLoss, X * 200, TARGET_PROBABILITY),
    *reduced(
        "BCEWithLogitsLoss weights",
        nn.BCEWithLogitsLoss,
        X,
        TARGET_PROBABILITY,
        weight=between(0.5, 1.5, 5),
        pos_weight=between(0.5, 2.5, 5),
    ),
    *reduced("KLDivLoss", log_probabilities(nn.KLDivLoss), X, TARGET_PROBABILITY.softmax(1)),
    *reduced(
        "KLDivLoss log_target", log_probabilities(nn.KLDivLoss), X, TARGET_PROBABILITY.log_softmax(1), log_target=True
    ),
    op("KLDivLoss batchmean", lambda x, y: F.kl_div(x.log_softmax(1), y, reduction="batchmean"), X, TARGET_PROBABILITY),
    *reduced("PoissonNLLLoss", nn.PoissonNLLLoss, X, PROBABILITY),
    *reduced(
        "PoissonNLLLoss full", nn.PoissonNLLLoss, PROBABILITY, ints(2, 6, 4, 5).float(), log_input=False, full=True
    ),
    *reduced("GaussianNLLLoss", nn.GaussianNLLLoss, X, Y, PROBABILITY),
    *reduced("HingeEmbeddingLoss", nn.HingeEmbeddingLoss, X, SIGNS, margin=0.8),
    *(
        op(
            f"SoftMarginLoss {r}",
            lambda x, b, r=r: F.soft_margin_loss(x, b.float() * 2 - 1, reduction=r),
            X,
            bools(4, 5),
        )
        for r in REDUCTIONS
    ),
    *reduced("CosineEmbeddingLoss", nn.CosineEmbeddingLoss, X, Y, VECTOR_SIGNS, margin=0.2),
    *reduced("MarginRankingLoss", nn.MarginRankingLoss, normal(4), normal(4, seed=1), VECTOR_SIGNS, margin=0.3),
    *reduced("TripletMarginLoss", nn.TripletMarginLoss, X, Y, normal(4, 5, seed=2)),
    *reduced(
        "TripletMarginLoss settings", nn.TripletMarginLoss, X, Y, normal(4, 5, seed=2), margin=0.5, p=3, swap=True
    ),
    *reduced("MultiLabelSoftMarginLoss", nn.MultiLabelSoftMarginLoss, X, bools(4, 5).float()),
    *reduced("MultiLabelMarginLoss", nn.MultiLabelMarginLoss, X, torch.tensor([[3, 0, -1, 1, 4]] * 4)),
    *reduced("MultiMarginLoss", nn.MultiMarginLoss, X, CLASSES),
    *(op(f"CTCLoss {r}", ctc(0, False, r), *CTC) for r in REDUCTIONS),
    op("CTCLoss blank", ctc(5, False, "mean"), *CTC),
    op("CTCLoss zero_infinity", ctc(0, True, "sum"), *TOO_SHORT),
]
