"""Rules for softmax, normalisation layers and losses: sequences of reductions and passes over elements."""

from __future__ import annotations

import math
from typing import Any

import torch

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.cycles import elementwise as elementwise_cycles
from poptorch.ipu_model.cycles import nonlinear, reductions
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Rule, Table
from poptorch.ipu_model.rules.elementwise import binary_steps
from poptorch.ipu_model.rules.expressions import sequence
from poptorch.ipu_model.rules.passes import each_element, move, reduce
from poptorch.ipu_model.rules.reductions import split_of
from poptorch.ipu_model.steps import CostStep, OpCost

_FLOAT = torch.float32


# -- softmax -----------------------------------------------------------------------------------------------------------


def broadcast(chip: Architecture, name: str, word: str, rows: int, length: int, dtype: torch.dtype) -> list[CostStep]:
    """An operation of a matrix with one number for each row."""
    whole, numbers = CostedOperand((rows, length), dtype), CostedOperand((rows, 1), dtype, home=1)
    return binary_steps(chip, name, word, whole, whole, numbers, dtype)


def softmax_steps(
    chip: Architecture, name: str, rows: int, length: int, dtype: torch.dtype, logarithm: bool = False,
    together: bool = True,
) -> list[CostStep]:  # fmt: skip
    """The stable form: maximum, difference, exponential, sum, then a division or a logarithm."""
    elements = rows * length
    steps: list[CostStep] = list(reduce(chip, f"{name}: max", rows, length, dtype, "max", together))
    steps += broadcast(chip, name, "subtract", rows, length, dtype)
    steps += sequence(chip, name, "exp", elements, dtype)
    steps += reduce(chip, f"{name}: sum", rows, length, dtype, "add", together)
    steps += sequence(chip, name, "log" if logarithm else "inverse", rows, _FLOAT)
    if dtype != _FLOAT:
        steps += sequence(chip, name, "cast", rows, dtype)
    return steps + broadcast(chip, name, "subtract" if logarithm else "multiply", rows, length, dtype)


def softmax_gradient_steps(
    chip: Architecture, name: str, rows: int, length: int, dtype: torch.dtype, logarithm: bool = False,
    together: bool = True,
) -> list[CostStep]:  # fmt: skip
    """Sum of the products of result and gradient, then their difference."""
    elements = rows * length
    steps = sequence(chip, name, "exp" if logarithm else "multiply", elements, dtype)
    steps += reduce(chip, f"{name}: sum", rows, length, dtype, "add", together)
    steps += broadcast(chip, name, "multiply", rows, length, dtype)
    return steps + sequence(chip, name, "subtract", elements, dtype)


def _softmax(call: CostedCall) -> OpCost:
    operand = call.operands[0]
    rows, length, together = split_of(operand, call["dim"])
    build = softmax_gradient_steps if "backward" in call.name else softmax_steps
    dtype = call.result.element_type
    steps = build(call.chip, call.name, rows, length, dtype, "log" in call.name, together)
    return OpCost(tuple(steps), 5.0 * operand.elements)


# -- normalisation -----------------------------------------------------------------------------------------------------


def _groups(call: CostedCall) -> tuple[CostedOperand, int, int, bool]:
    """The tensor that is normalised; how many statistics there are; elements of each; whether these lie together."""
    data = max(call.operands, key=lambda operand: operand.elements)
    if "normalized_shape" in call.by_name:
        length = math.prod(call["normalized_shape"])
        return data, data.elements // max(1, length), length, True
    if "group" in call.by_name:
        count = int(call["N"]) * int(call["group"])
        return data, count, data.elements // max(1, count), True
    channels = data.shape[1] if len(data.shape) > 1 else 1
    return data, channels, data.elements // max(1, channels), False


def _affine(call: CostedCall) -> bool:
    return isinstance(call.get("weight"), CostedOperand)


def statistics_steps(
    chip: Architecture, name: str, count: int, length: int, dtype: torch.dtype, rows: bool
) -> list[CostStep]:
    """Means and inverse standard deviations, in one pass over the data."""
    steps: list[CostStep] = list(reduce(chip, f"{name}: mean", count, length, dtype, "add", rows))
    steps += reduce(chip, f"{name}: power", count, length, dtype, "square", rows)

    def inverse(own: int) -> float:
        return chip.workers * reductions.inverse_deviation(-(-own // chip.workers))

    steps.append(each_element(chip, f"{name}: inverse deviation", count, _FLOAT, inverse, "unary"))
    return steps


def _normalise_steps(
    chip: Architecture, name: str, data: CostedOperand, count: int, rows: bool, channels: int, words: str
) -> list[CostStep]:
    """Broadcast passes: with one number for each group, or (``gamma``, ``beta``) for each channel."""
    dtype = data.element_type
    length = data.elements // max(1, count)
    whole = CostedOperand((count, length) if rows else (length, count), dtype)
    numbers = CostedOperand((count, 1) if rows else (1, count), dtype, home=1)
    by_channel = CostedOperand((data.elements // max(1, channels), channels), dtype)
    weights = CostedOperand((channels,), dtype, home=1)
    steps: list[CostStep] = []
    for word in words.split():
        if word in ("gamma", "beta"):
            operation = "multiply" if word == "gamma" else "add"
            steps += binary_steps(chip, f"{name}: {word}", operation, by_channel, by_channel, weights, dtype)
        else:
            steps += binary_steps(chip, name, word, whole, whole, numbers, dtype)
    return steps


def _channels(call: CostedCall, data: CostedOperand) -> int:
    if "normalized_shape" in call.by_name:
        return math.prod(call["normalized_shape"])
    return data.shape[1] if len(data.shape) > 1 else 1


def _norm(statistics: bool = True) -> Rule:
    def rule(call: CostedCall) -> OpCost:
        data, count, length, rows = _groups(call)
        chip, dtype, channels = call.chip, data.element_type, _channels(call, data)
        training = statistics and call.get("training", call.get("train", True)) is not False
        if not training:
            steps = _normalise_steps(chip, call.name, data, channels, False, channels, "gamma beta")
            folded = sequence(chip, call.name, "variance_to_inverse multiply scaled_add", channels, _FLOAT)
            return OpCost((*folded, *steps), 2.0 * data.elements)
        steps = statistics_steps(chip, call.name, count, length, dtype, rows)
        words = "subtract multiply" + (" gamma beta" if _affine(call) else "")
        steps += _normalise_steps(chip, call.name, data, count, rows, channels, words)
        if "running_mean" in call.by_name and isinstance(call["running_mean"], CostedOperand):
            steps += sequence(chip, f"{call.name}: running statistics", "scaled_add scaled_add", channels, _FLOAT)
        return OpCost(tuple(steps), 8.0 * data.elements)

    return rule


def _norm_backward(call: CostedCall) -> OpCost:
    data, count, length, rows = _groups(call)
    chip, dtype, channels = call.chip, data.element_type, _channels(call, data)
    wanted: Any = call.get("output_mask", (True, True, True))
    name = call.name
    steps = _normalise_steps(chip, f"{name}: whiten", data, count, rows, channels, "subtract multiply")
    if any(wanted[1:]):
        steps += sequence(chip, f"{name}: weights", "multiply", data.elements, dtype)
        positions = data.elements // max(1, channels)
        for label in ("gamma", "beta"):
            steps += reduce(chip, f"{name}: {label}", channels, positions, dtype, "add", False)
    if wanted[0]:
        steps += _normalise_steps(chip, name, data, count, rows, channels, "gamma") if _affine(call) else []
        steps += reduce(chip, f"{name}: sum", count, length, dtype, "add", rows)
        steps += sequence(chip, name, "multiply", data.elements, dtype)
        steps += reduce(chip, f"{name}: product", count, length, dtype, "add", rows)
        steps += _normalise_steps(chip, name, data, count, rows, channels, "multiply add")
        steps += sequence(chip, name, "scaled_add", data.elements, dtype)
        steps += _normalise_steps(chip, name, data, count, rows, channels, "multiply")
    return OpCost(tuple(steps), 14.0 * data.elements)


def _root_mean_square(call: CostedCall) -> OpCost:
    data, count, length, rows = _groups(call)
    chip, dtype = call.chip, data.element_type
    backward = "backward" in call.name
    steps: list[CostStep] = list(reduce(chip, f"{call.name}: power", count, length, dtype, "square", rows))
    steps += sequence(chip, call.name, "multiply# add# rsqrt", count, _FLOAT)
    words = "multiply gamma" if _affine(call) else "multiply"
    steps += _normalise_steps(chip, call.name, data, count, rows, _channels(call, data), words)
    if backward:
        steps += sequence(chip, call.name, "multiply", data.elements, dtype)
        steps += reduce(chip, f"{call.name}: sum", count, length, dtype, "add", rows)
        steps += _normalise_steps(chip, call.name, data, count, rows, _channels(call, data), "multiply multiply")
        steps += sequence(chip, call.name, "scaled_add", data.elements, dtype)
    return OpCost(tuple(steps), 4.0 * data.elements)


def _weight_norm(call: CostedCall) -> OpCost:
    """A norm for each row of the weight, then a factor for it."""
    data, chip = max(call.operands, key=lambda operand: operand.elements), call.chip
    dim = call.get("dim", 0) or 0
    count = data.shape[dim] if data.shape else 1
    length, dtype = data.elements // max(1, count), data.element_type
    steps: list[CostStep] = list(reduce(chip, f"{call.name}: norm", count, length, dtype, "square", dim == 0))
    steps += sequence(chip, call.name, "sqrt divide", count, _FLOAT)
    steps += broadcast(chip, call.name, "multiply", count, length, dtype)
    if "backward" in call.name:
        steps += sequence(chip, call.name, "multiply", data.elements, dtype)
        steps += reduce(chip, f"{call.name}: sum", count, length, dtype, "add", dim == 0)
        steps += sequence(chip, call.name, "scaled_add", data.elements, dtype)
    return OpCost(tuple(steps), 4.0 * data.elements)


# -- losses ------------------------------------------------------------------------------------------------------------


def _likelihood(call: CostedCall) -> OpCost:
    """Choose the value of each target, weigh and add; or put a value at each target."""
    chip, target = call.chip, call["target"]
    data: CostedOperand = call["self"]
    dtype, rows = data.element_type, max(1, target.elements)
    classes = max(1, data.elements // rows)
    encode = each_element(
        chip, f"{call.name}: one-hot", data.elements, dtype,
        lambda own: elementwise_cycles.one_hot(max(1, -(-own // classes)), dtype), "search",
        moved=4.0 * max(1, -(-rows // chip.tiles)),
    )  # fmt: skip
    steps = [encode, *sequence(chip, call.name, "multiply", data.elements, dtype)]
    if "backward" in call.name:
        return OpCost((*steps, *sequence(chip, call.name, "multiply#", data.elements, dtype)), 2.0 * data.elements)
    loss = each_element(chip, call.name, data.elements, dtype, lambda own: nonlinear.loss(own, dtype), "search")
    outputs = max(1, call.result.elements)
    total = reduce(chip, f"{call.name}: sum", outputs, max(1, data.elements // outputs), dtype, "add")
    return OpCost((*steps, loss, *total), 2.0 * data.elements)


def pointwise_loss(words: str, gradient: str) -> Rule:
    """A loss that looks at one element at a time: passes, then a sum or mean; the gradient is passes only."""

    def rule(call: CostedCall) -> OpCost:
        chip, data = call.chip, max(call.operands, key=lambda operand: operand.elements)
        dtype = data.element_type
        if "backward" in call.name:
            return OpCost(tuple(sequence(chip, call.name, gradient, data.elements, dtype)), 3.0 * data.elements)
        steps = sequence(chip, call.name, words, data.elements, dtype)
        if call.result.elements < data.elements:
            steps += reduce(chip, f"{call.name}: sum", 1, data.elements, dtype, "add")
        return OpCost(tuple(steps), 3.0 * data.elements)

    return rule


def _temporal(call: CostedCall) -> OpCost:
    """Connectionist temporal classification: one step for each time, over all labels of all samples.

    Each time adds three logarithms of probabilities for each of twice as many states as a sample has labels. The
    gradient walks back, and adds up what each symbol gets.
    """
    chip = call.chip
    data = next((o for o in call.operands if len(o.shape) == 3), call.operands[0])
    times = data.shape[0] if len(data.shape) == 3 else 1
    batch = data.shape[1] if len(data.shape) == 3 else 1
    targets = next((o for o in call.operands if not o.dtype.is_floating_point and o.elements > batch), data)
    states = 2 * (targets.shape[-1] if len(targets.shape) > 1 else -(-targets.elements // max(1, batch))) + 1
    words = "maximum maximum subtract exp add log add"
    steps = sequence(chip, call.name, words, batch * states, _FLOAT, moved=8.0, repeat=max(1, times))
    if "backward" in call.name:
        steps += sequence(chip, call.name, "exp subtract multiply", data.elements, data.element_type)
    return OpCost(tuple(steps), 7.0 * times * batch * states)


def _beam_search(call: CostedCall) -> OpCost:
    chip = call.chip
    data = call.operands[0]
    times, batch, classes = data.shape if len(data.shape) == 3 else (1, 1, data.elements)
    width = int(call.get("beam_width", 1))
    words = "add compare select maximum exp add log"
    count, turns = batch * width * classes, max(1, times)
    steps = sequence(chip, call.name, words, count, _FLOAT, moved=8.0 * width, repeat=turns)

    def keep(own: int) -> float:
        return nonlinear.top_k(own, width)

    steps.append(each_element(chip, f"{call.name}: keep", count, _FLOAT, keep, "search", 8.0 * width, 1, turns))
    return OpCost((*steps, move(chip, f"{call.name}: paths", call.results[-1].elements, torch.int32)), 0.0)


_LOSSES = {
    "mse_loss": ("subtract square", "subtract multiply#"),
    "l1_loss": ("subtract abs", "subtract signum"),
    "smooth_l1_loss": ("subtract abs square compare# select", "subtract clamp multiply"),
    "huber_loss": ("subtract abs square compare# select", "subtract clamp multiply"),
    "binary_cross_entropy": ("log log1p multiply multiply add", "subtract multiply divide"),
    "binary_cross_entropy_with_logits": ("clamp multiply exp log1p add", "sigmoid subtract multiply"),
    "soft_margin_loss": ("multiply exp log1p", "multiply sigmoid multiply"),
    "multi_margin_loss": ("subtract add# maximum#", "compare# select multiply#"),
    "multilabel_margin_loss": ("subtract add# maximum#", "compare# select multiply#"),
    "kl_div": ("log subtract multiply", "multiply"),
    "hinge_embedding_loss": ("subtract maximum# select", "compare# select"),
    "margin_ranking_loss": ("subtract multiply maximum#", "compare# select multiply"),
    "cosine_embedding_loss": ("multiply square square rsqrt multiply", "multiply scaled_add"),
    "poisson_nll_loss": ("exp multiply subtract", "exp subtract multiply"),
}

RULES: Table = {
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax", "_masked_softmax", "softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data", "_masked_softmax_backward"), _softmax),
    **dict.fromkeys(
        (
            "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
            "_native_batch_norm_legit_functional", "_batch_norm_with_update", "_batch_norm_with_update_functional",
        ),
        _norm(),
    ),
    "_native_batch_norm_legit_no_training": _norm(statistics=False),
    "_batch_norm_no_update": _norm(statistics=False),
    **dict.fromkeys(
        (
            "native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward",
            "batch_norm_backward",
        ),
        _norm_backward,
    ),
    **dict.fromkeys(("rms_norm", "_fused_rms_norm", "_fused_rms_norm_backward"), _root_mean_square),
    **dict.fromkeys(("_weight_norm_interface", "_weight_norm_interface_backward", "renorm"), _weight_norm),
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "nll_loss"), _likelihood
    ),
    **{
        form: pointwise_loss(*words)
        for name, words in _LOSSES.items()
        for form in (name, f"{name}_forward", f"{name}_backward")
    },
    **dict.fromkeys(("_ctc_loss", "_ctc_loss_backward", "static_ctc_loss", "static_ctc_loss_backward"), _temporal),
    "ctc_beam_search_decoder": _beam_search,
}  # fmt: skip

__all__ = ["RULES", "broadcast", "pointwise_loss", "softmax_gradient_steps", "softmax_steps", "statistics_steps"]
