"""Losses and CTC of ``ai.graphcore``."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Float, Int, String
from poptorch.ops.builtin.definitions import Situation, graphcore
from poptorch.ops.builtin.values import onnx_type, reduced
from poptorch.ops.ctc import CTC_BEAM_SEARCH
from poptorch.ops.loss import identity_loss

_LEAST = {torch.float16: 6.104e-5}
"""The least probability whose logarithm is taken, where it is not 1e-7."""

_LEAST_DIVISOR = {torch.float16: 6.104e-5}


@graphcore("L1", types="N", attributes={"lambda": Float()}, reduction=String())
def _l1(x: torch.Tensor, *, lambda_: float, reduction: str) -> torch.Tensor:
    if not x.dim():
        raise createPoptorchError("L1Op not valid for rank-0 tensor (scalar)")
    return reduced(x.abs() * lambda_, reduction)


@graphcore("Nll", types=("F", "A"), reduction=String(), ignoreIndex=Int(None), inputIsLogProbability=Int(0))
def _nll(
    p: torch.Tensor, label: torch.Tensor, *, reduction: str, ignoreIndex: int | None, inputIsLogProbability: int
) -> torch.Tensor:
    if not p.dim():
        raise createPoptorchError(
            "Invalid shape for prob tensor: it is a scalar, but its last axis is that of classes."
        )
    if label.is_floating_point() or label.dtype is torch.bool:
        raise createPoptorchError(f"Expected the label tensor to be an integer data type, not {label.dtype}.")
    if label.shape != p.shape[:-1]:
        raise createPoptorchError(
            f"The label tensor must have shape {list(p.shape[:-1])} to match all but the last axis of the "
            f"probabilities, which have shape {list(p.shape)}; it has shape {list(label.shape)}."
        )
    selects = (label >= 0) & (label < p.shape[-1])
    picked = p.gather(-1, torch.where(selects, label, 0).long().unsqueeze(-1)).squeeze(-1)
    picked = torch.where(selects, picked, torch.zeros_like(picked))
    loss = -picked if inputIsLogProbability else _negative_log(picked)
    count: torch.Tensor | int = loss.numel()
    if ignoreIndex is not None:
        counts = label != ignoreIndex
        loss = torch.where(counts, loss, torch.zeros_like(loss))
        count = counts.sum().clamp(min=1)
    return reduced(loss, reduction, count)


def _negative_log(p: torch.Tensor) -> torch.Tensor:
    """The logarithm of a probability that is not too small; its gradient has a limit of its own, and never stops."""
    value = p.detach()
    slope = value.clamp(min=_LEAST_DIVISOR.get(p.dtype, 1e-10)).reciprocal()
    # The second term is zero and has the gradient of the logarithm.
    return -value.clamp(min=_LEAST.get(p.dtype, 1e-7)).log() - (p - value) * slope


@graphcore("IdentityLoss", reduction=String())
def _identity_loss(x: torch.Tensor, *, reduction: str) -> torch.Tensor:
    if reduction not in ("Sum", "Mean", "None"):
        return reduced(x, reduction)  # says what is wrong
    return identity_loss(x, reduction.lower())


@graphcore(
    "Ctc",
    types=("F", "I", "I", "I"),
    outputs=2,
    reduction=String(),
    blank=Int(),
    outDataType=Int(),
    zeroInfinity=Int(0),
    enableReducedClassesInLabel=Int(0),
)
def _ctc(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *,
    reduction: str,
    blank: int,
    outDataType: int,
    zeroInfinity: int,
    enableReducedClassesInLabel: int,
    at: Situation,
) -> list[torch.Tensor]:
    _check_ctc_shapes(log_probs, targets, input_lengths, target_lengths)
    if not 0 <= blank < log_probs.shape[2]:
        raise createPoptorchError(f"The blank {blank} is not one of the {log_probs.shape[2]} classes.")
    kind = onnx_type(outDataType) if outDataType else log_probs.dtype
    if not kind.is_floating_point:
        raise createPoptorchError(f"Unsupported data type for output: outDataType is {outDataType} ({kind}).")
    others = targets.long(), input_lengths.long(), target_lengths.long()

    def each(values: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(values, *others, blank=blank, reduction="none", zero_infinity=bool(zeroInfinity))

    losses = each(log_probs)
    mean = losses / others[2].clamp(min=1).to(losses.dtype) if reduction == "Mean" else losses
    outputs = [reduced(mean, reduction).to(kind)]
    if len(at.templates) > 1:
        with torch.enable_grad():
            values = log_probs.detach().requires_grad_()
            (slope,) = torch.autograd.grad(each(values).sum(), values)
        outputs.append(slope.detach().to(kind))
    else:
        outputs.append(torch.zeros_like(log_probs.detach()))
    return outputs


def _check_ctc_shapes(log_probs: torch.Tensor, *others: torch.Tensor) -> None:
    targets, *lengths = others
    if log_probs.dim() != 3:
        raise createPoptorchError(
            f"Unsupported shape for input 0, the log probabilities: they must be [time, batch, classes], not "
            f"{list(log_probs.shape)}."
        )
    batch = log_probs.shape[1]
    if targets.dim() != 2 or targets.shape[0] != batch:
        raise createPoptorchError(
            f"Unsupported shape for input 1, the targets: they must be [{batch}, length], not {list(targets.shape)}."
        )
    for number, length in enumerate(lengths, 2):
        if list(length.shape) != [batch]:
            raise createPoptorchError(
                f"Unsupported shape for input {number}, lengths: they must be [{batch}], not {list(length.shape)}."
            )


@graphcore(
    "CtcBeamSearchDecoder",
    types=("F", "I"),
    outputs=3,
    differentiable=False,
    blank=Int(0),
    beam_width=Int(100),
    top_paths=Int(1),
)
def _ctc_beam_search(
    log_probs: torch.Tensor, lengths: torch.Tensor, *, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, ...]:
    if log_probs.dim() != 3:
        raise createPoptorchError(
            f"Unsupported shape for input 0, the log probabilities: they must be [time, batch, classes], not "
            f"{list(log_probs.shape)}."
        )
    if list(lengths.shape) != [log_probs.shape[1]]:
        raise createPoptorchError(
            f"Unsupported shape for input 1, lengths: they must be [{log_probs.shape[1]}], not {list(lengths.shape)}."
        )
    if not 0 <= blank < log_probs.shape[2]:
        raise createPoptorchError(f"The blank {blank} is not one of the {log_probs.shape[2]} classes.")
    if not 1 <= top_paths <= beam_width:
        raise createPoptorchError(f"top_paths ({top_paths}) must be at least 1 and at most beam_width ({beam_width}).")
    probabilities, path_lengths, paths = CTC_BEAM_SEARCH(log_probs, lengths, blank, beam_width, top_paths)
    return probabilities, path_lengths, paths
