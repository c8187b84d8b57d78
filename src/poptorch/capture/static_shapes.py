"""Operations whose ATen form has a result of a size that depends on values, in a form with static sizes.

Some of these sizes belong to intermediate results which only the backward pass sees, so nothing is lost by making
them as large as they can ever be; others the user has to give.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

from poptorch.errors import createPoptorchError
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


def _ctc_loss_fake(log_probs: torch.Tensor, targets: torch.Tensor, *settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    steps, rows, _ = log_probs.shape
    return log_probs.new_empty(rows), log_probs.new_empty(rows, steps, _ctc_states(targets))


_ctc_loss_op = define(
    "static_ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0, "
    "bool zero_infinity=False) -> (Tensor, Tensor)",
    _ctc_loss,
    _ctc_loss_fake,
)


def _bincount(values: torch.Tensor, weights: torch.Tensor | None, length: int) -> torch.Tensor:
    counts = torch.bincount(values, weights, length)
    if len(counts) > length:
        raise createPoptorchError(
            f"bincount(minlength={length}): a value of {len(counts) - 1} does not fit. In a compiled program minlength "
            "is the length of the result, so it must be larger than the largest value."
        )
    return counts


def _bincount_fake(values: torch.Tensor, weights: torch.Tensor | None, length: int) -> torch.Tensor:
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    return values.new_empty(length, dtype=dtype)


_bincount_op = define(
    "static_bincount(Tensor values, Tensor? weights, int length) -> Tensor", _bincount, _bincount_fake
)


def _bincount_form(values: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    if minlength <= 0:
        raise createPoptorchError(
            "Bincount `minlength` must be specified and must be a constant. On the IPU MK2 platform the minimum length "
            "is also the maximum length: it is the length of the result, which a compiled program cannot take from the "
            "values."
        )
    return _bincount_op(values, weights, minlength)


def _lstsq(a: torch.Tensor, b: torch.Tensor, rcond: float | None, driver: str | None) -> list[torch.Tensor]:
    solution, _, rank, singular = aten.linalg_lstsq.default(a, b, rcond, driver=driver)
    return [solution, _residuals(a, b, solution), rank, singular]


def _residuals(a: torch.Tensor, b: torch.Tensor, solution: torch.Tensor) -> torch.Tensor:
    """PyTorch leaves them out when the rank, known at run time only, is not full; here they are always present."""
    if a.shape[-2] <= a.shape[-1]:
        return a.new_empty(0)
    return (a @ solution - b).square().sum(-2)


def _lstsq_fake(a: torch.Tensor, b: torch.Tensor, rcond: float | None, driver: str | None) -> list[torch.Tensor]:
    batch = a.shape[:-2]
    has_singular_values = driver in ("gelsd", "gelss")
    solution = b.new_empty((*batch, a.shape[-1], b.shape[-1]))
    rank = a.new_empty(batch if driver != "gels" else (0,), dtype=torch.int64)
    singular = a.new_empty((*batch, min(a.shape[-2:])) if has_singular_values else (0,))
    return [solution, _residuals(a, b, solution), rank, singular]


_lstsq_op = define("static_lstsq(Tensor a, Tensor b, float? rcond, str? driver) -> Tensor[]", _lstsq, _lstsq_fake)


def _lstsq_form(
    a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, ...]:
    return tuple(_lstsq_op(a, b, rcond, driver))


def _random_from(target: torch.Tensor, low: int, high: int | None = None, *, generator: Any = None) -> torch.Tensor:
    """``random_(low, high)``. The overload is named ``from``, which no generated Python code can spell."""
    if high is None:
        high = 2 ** round(-math.log2(torch.finfo(target.dtype).eps) + 1) + 1 if target.is_floating_point() else (
            torch.iinfo(target.dtype).max
        )  # fmt: skip
    return aten.copy_.default(target, aten.randint_like.low_dtype(target, low, high))


STATIC_FORMS: dict[Any, Any] = {
    aten.random_.__getattr__("from"): _random_from,
    aten._ctc_loss.Tensor: _ctc_loss_op,
    aten.bincount.default: _bincount_form,
    aten.linalg_lstsq.default: _lstsq_form,
}
"""Called instead of the key whenever a model is captured; also for an overload whose name stands in the way."""
