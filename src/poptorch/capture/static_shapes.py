"""Operations whose ATen form has a result of a size that depends on values, in a form with static sizes.

The size in question is that of an intermediate result which only the backward pass sees, so nothing is lost by
making it as large as it can ever be.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from poptorch.ops._library import define

aten = torch.ops.aten


def _ctc_states(targets: torch.Tensor) -> int:
    """Labels with blanks around them, for the longest target that the tensor can hold (padded or concatenated)."""
    return 2 * targets.shape[-1] + 1


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    loss, log_alpha = aten._ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    unused = _ctc_states(targets) - log_alpha.shape[-1]
    return loss, F.pad(log_alpha, (0, unused), value=-torch.inf)


def _ctc_loss_fake(
    log_probs: torch.Tensor, targets: torch.Tensor, *settings: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    steps, rows, _ = log_probs.shape
    return log_probs.new_empty(rows), log_probs.new_empty(rows, steps, _ctc_states(targets))


_ctc_loss_op = define(
    "static_ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0, "
    "bool zero_infinity=False) -> (Tensor, Tensor)",
    _ctc_loss,
    _ctc_loss_fake,
)

STATIC_FORMS: dict[Any, Any] = {aten._ctc_loss.Tensor: _ctc_loss_op}
"""Called instead of the key whenever a model is captured."""
