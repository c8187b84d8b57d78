"""Operations whose ATen form has a result of a size that depends on values, in a form with static sizes.

Some of these sizes belong to intermediate results which only the backward pass sees, so nothing is lost by making
them as large as they can ever be; others the user has to give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    wide = _wide(log_probs)
    loss, log_alpha = aten._ctc_loss.Tensor(wide, targets, input_lengths, target_lengths, blank, zero_infinity)
    unused = _ctc_states(targets) - log_alpha.shape[-1]
    log_alpha = F.pad(log_alpha, (0, unused), value=-torch.inf)
    return loss.to(log_probs.dtype), log_alpha.to(log_probs.dtype)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Torch has these kernels for float32 only."""
    return tensor.float() if tensor.dtype is torch.float16 else tensor


def _ctc_loss_fake(log_probs: torch.Tensor, targets: torch.Tensor, *settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    steps, rows, _ = log_probs.shape
    return log_probs.new_empty(rows), log_probs.new_empty(rows, steps, _ctc_states(targets))


_ctc_loss_op = define(
    "static_ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0, "
    "bool zero_infinity=False) -> (Tensor, Tensor)",
    _ctc_loss,
    _ctc_loss_fake,
)


def _ctc_loss_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    lengths: Sequence[torch.Tensor],
    loss: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> torch.Tensor:
    floats = [_wide(value) for value in (grad, log_probs, loss, log_alpha)]
    result = aten._ctc_loss_backward.Tensor(*floats[:2], targets, *lengths, *floats[2:], blank, zero_infinity)
    return result.to(log_probs.dtype)


def _ctc_loss_backward_fake(grad: torch.Tensor, log_probs: torch.Tensor, *settings: Any) -> torch.Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


_ctc_loss_backward_op = define(
    "static_ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, Tensor[] lengths, Tensor loss, "
    "Tensor log_alpha, int blank, bool zero_infinity) -> Tensor",
    _ctc_loss_backward,
    _ctc_loss_backward_fake,
)


def _ctc_loss_backward_form(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    loss: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    lengths = [input_lengths, target_lengths]
    return _ctc_loss_backward_op(grad, log_probs, targets, lengths, loss, log_alpha, blank, zero_infinity)


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


def _rnn_layer_backward(*args: Any) -> list[torch.Tensor]:
    """Both biases have the same gradient, and torch returns it twice in the same memory.

    It has no function of shapes: the first fake call in a process sees one tensor, later ones are told of two.
    """
    gradients = list(aten.mkldnn_rnn_layer_backward.default(*args))
    gradients[3], gradients[4] = gradients[4], aten.clone.default(gradients[4])
    return gradients


def _random_from(target: torch.Tensor, low: int, high: int | None = None, *, generator: Any = None) -> torch.Tensor:
    """``random_(low, high)``. The overload is named ``from``, which no generated Python code can spell."""
    if high is None:
        high = 2 ** round(-math.log2(torch.finfo(target.dtype).eps) + 1) + 1 if target.is_floating_point() else (
            torch.iinfo(target.dtype).max
        )  # fmt: skip
    return aten.copy_.default(target, aten.randint_like.low_dtype(target, low, high))


def _grouped_mm_shape(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> tuple[int, ...]:
    rows, columns = a.shape[-2], b.shape[-1]
    if a.ndim == b.ndim == 2:
        assert offs is not None
        return offs.shape[0], rows, columns
    return (rows, columns) if 2 in (a.ndim, b.ndim) else (a.shape[0], rows, columns)


def _grouped_mm(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    """One product for each group of rows, columns or terms; ``offs`` says where the groups end."""
    dtype = out_dtype or a.dtype
    if a.dtype is torch.float16:
        a, b = a.float(), b.float()  # a CPU multiplies these much faster
    if offs is None:
        return torch.bmm(a, b).to(dtype)
    result = a.new_zeros(_grouped_mm_shape(a, b, offs))
    ends = offs.tolist()
    for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if a.ndim == b.ndim == 2:
            torch.mm(a[:, start:end], b[start:end], out=result[group])
        elif a.ndim == 2:
            result[start:end] = a[start:end] @ b[group]
        else:
            result[:, start:end] = a[group] @ b[:, start:end]
    return result.to(dtype)


def _grouped_mm_fake(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    return a.new_empty(_grouped_mm_shape(a, b, offs), dtype=out_dtype or a.dtype)


_grouped_mm_op = define(
    "static_grouped_mm(Tensor a, Tensor b, Tensor? offs, ScalarType? out_dtype) -> Tensor",
    _grouped_mm,
    _grouped_mm_fake,
)


def _grouped_mm_form(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Torch's function of shapes knows bfloat16 and aligned rows only, its kernel for CPUs computes all of them."""
    if bias is not None:
        raise createPoptorchError("grouped_mm: a bias is not supported; add it to the result")
    return _grouped_mm_op(a, b, offs, out_dtype)


STATIC_FORMS: dict[Any, Any] = {
    aten.random_.__getattr__("from"): _random_from,
    aten._ctc_loss.Tensor: _ctc_loss_op,
    aten._ctc_loss_backward.Tensor: _ctc_loss_backward_form,
    aten.bincount.default: _bincount_form,
    aten.linalg_lstsq.default: _lstsq_form,
    aten._grouped_mm.default: _grouped_mm_form,
    aten.mkldnn_rnn_layer_backward.default: _rnn_layer_backward,
}
"""Called instead of the key whenever a model is captured; also for an overload whose name stands in the way."""
