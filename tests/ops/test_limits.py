"""Refusals of the original, when asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from poptorch.ops.limits import OriginalLimits

LOG_PROBS, LENGTHS = torch.randn(5, 2, 3).log_softmax(-1), torch.tensor([5, 5])
PADDED, JOINED = torch.tensor([[1, 2], [2, 1]]), torch.tensor([1, 2, 2, 1])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ctc_losses_within_the_limits(reduction: str) -> None:
    with OriginalLimits():
        loss = nn.CTCLoss(reduction=reduction)(LOG_PROBS, PADDED, LENGTHS, torch.tensor([2, 2]))
    assert loss.dim() == 0


def test_ctc_losses_beyond_the_limits() -> None:
    targets = torch.tensor([2, 2])
    with OriginalLimits():
        with pytest.raises(poptorch.Error, match='CTCLoss with reduction="none" is currently not supported'):
            nn.CTCLoss(reduction="none")(LOG_PROBS, PADDED, LENGTHS, targets)
        with pytest.raises(poptorch.Error, match=r"CTCLoss needs 2-D targets.*\[4\]"):
            nn.CTCLoss()(LOG_PROBS, JOINED, LENGTHS, targets)
    nn.CTCLoss(reduction="none")(LOG_PROBS, JOINED, LENGTHS, targets)
