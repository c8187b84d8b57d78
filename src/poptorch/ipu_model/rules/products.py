"""Rules for products of matrices, convolutions and attention: the planner decides what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from poptorch.ipu_model.planner import ConvolutionShape, ProductPass, plan_convolution, plan_product
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Table
from poptorch.ipu_model.rules.elementwise import binary_steps
from poptorch.ipu_model.rules.expressions import sequence
from poptorch.ipu_model.rules.layers import softmax_gradient_steps, softmax_steps
from poptorch.ipu_model.rules.passes import move, reduce
from poptorch.ipu_model.steps import CostStep, OpCost

_REAL_PRODUCTS = 4
"""Products of real matrices in one of complex matrices."""


def joined(costs: Sequence[OpCost], extra: Sequence[CostStep] = ()) -> OpCost:
    """Several costs, one after the other, and more steps."""
    return OpCost(
        (*(step for cost in costs for step in cost.steps), *extra),
        sum(cost.flops for cost in costs),
        weight_tile_bytes=max((cost.weight_tile_bytes for cost in costs), default=0.0),
    )


def repeated(cost: OpCost, times: int) -> OpCost:
    """The same steps in a loop."""
    steps = tuple(replace(step, repeat=step.repeat * times) for step in cost.steps)
    return replace(cost, steps=steps, flops=cost.flops * times)


def product_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which matrices are multiplied: whole numbers as float32."""
    return torch.float16 if dtype in (torch.float16, torch.bfloat16, torch.complex32) else torch.float32


def product(
    call: CostedCall, groups: int, rows: int, inner: int, columns: int, dtype: torch.dtype,
    left: CostedOperand | None = None, right: CostedOperand | None = None,
) -> OpCost:  # fmt: skip
    """Plan a product; operands that are at home in it are not arranged."""
    several = _REAL_PRODUCTS if dtype.is_complex else 1
    return plan_product(
        call.chip, groups * several, rows, inner, columns, product_type(dtype), call.partials, call.proportion,
        arrange_left=left is None or not left.resident, arrange_right=right is None or not right.resident,
    )  # fmt: skip


def _matrices(call: CostedCall, left: CostedOperand, right: CostedOperand) -> OpCost:
    """The product of two tensors by the rules of ``matmul``."""
    rows = left.shape[-2] if len(left.shape) > 1 else 1
    inner = left.shape[-1] if left.shape else 1
    columns = right.shape[-1] if len(right.shape) > 1 else 1
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    groups = math.prod(batch)
    if len(right.shape) <= 2 and groups > 1:  # one matrix for all: more rows
        groups, rows = 1, rows * groups
    return product(call, groups, rows, inner, columns, left.dtype, left, right)


def _two(call: CostedCall) -> OpCost:
    left, right = call.operands[:2]
    return _matrices(call, left, right)


def _with_addend(call: CostedCall) -> OpCost:
    """``beta * addend + alpha * left @ right``."""
    addend, left, right = call.operands[:3]
    cost, result = _matrices(call, left, right), call.result
    if call.name == "addbmm" and len(left.shape) == 3:
        added = reduce(call.chip, "addbmm: sum", result.elements, left.shape[0], result.element_type, "add", False)
        cost = joined([cost], added)
    extra = _scaling(call, result) if call.get("alpha", 1) != 1 or call.get("beta", 1) not in (0, 1) else []
    if call.get("beta", 1) != 0:
        whole = replace(result, home=0)
        extra += binary_steps(call.chip, call.name, "add", result, whole, replace(addend, home=1), result.element_type)
    return joined([cost], extra)


def _scaling(call: CostedCall, result: CostedOperand) -> list[CostStep]:
    return sequence(call.chip, call.name, "multiply#", result.elements, result.element_type)


def _outer(call: CostedCall) -> OpCost:
    *addend, left, right = call.operands
    cost = product(call, 1, left.elements, 1, right.elements, left.dtype)
    result = call.result
    return joined([cost], sequence(call.chip, call.name, "add" if addend else "", result.elements, result.element_type))


def _linear(call: CostedCall) -> OpCost:
    data, weight, *bias = call.operands
    inner = data.shape[-1]
    cost = product(call, 1, data.elements // max(1, inner), inner, weight.shape[0], data.dtype, data, weight)
    result, dtype = replace(call.result, home=0), call.result.element_type
    added = [replace(vector, home=1) for vector in bias]
    steps = [binary_steps(call.chip, "linear", "add", result, result, vector, dtype) for vector in added]
    return joined([cost], [step for some in steps for step in some])


def _serialized(call: CostedCall) -> OpCost:
    """The same product in ``factor`` parts, one after the other, in a loop."""
    left, right = call.operands[:2]
    factor, mode = max(1, int(call["factor"])), str(call["mode"])
    rows, inner = left.shape[-2] if len(left.shape) > 1 else 1, left.shape[-1]
    columns = right.shape[-1] if len(right.shape) > 1 else 1
    groups = math.prod(left.shape[:-2])
    if len(right.shape) <= 2:
        groups, rows = 1, rows * groups
    if "reducing" in mode:
        inner = -(-inner // factor)
    elif "input" in mode:
        rows = -(-rows // factor)
    elif "output" in mode:
        columns = -(-columns // factor)
    else:
        factor = 1
    cost = repeated(product(call, groups, rows, inner, columns, left.dtype, left, right), factor)
    extra: list[CostStep] = []
    if factor > 1:
        part = -(-call.result.elements // (1 if "reducing" in mode else factor))
        if "reducing" in mode:
            extra = sequence(call.chip, call.name, "add", part, call.result.element_type, repeat=factor)
        else:
            step = move(call.chip, f"{call.name}: part", part, call.result.element_type, exchanged=False)
            extra = [replace(step, repeat=factor)]
    return joined([cost], extra)


def _grouped(call: CostedCall) -> OpCost:
    """Groups of rows, each with a matrix of its own; assumed to be equally large."""
    left, right = call.operands[:2]
    if len(left.shape) == 3 and len(right.shape) == 3:
        return _matrices(call, left, right)
    matrices = next((o.shape[0] for o in (left, right, call.result) if len(o.shape) == 3), 1)
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if len(left.shape) == 2 and len(right.shape) == 2:
        inner = -(-inner // matrices)
    elif len(left.shape) == 2:
        rows = -(-rows // matrices)
    else:
        columns = -(-columns // matrices)
    return product(call, matrices, rows, inner, columns, left.dtype)


def _trilinear(call: CostedCall) -> OpCost:
    """Expand two operands, multiply, and sum with the third."""
    result, dtype = call.result, call.result.element_type
    total = max(operand.elements for operand in call.operands) * max(1, *result.shape[-1:])
    steps = sequence(call.chip, call.name, "multiply multiply", total, dtype)
    outputs = max(1, call.result.elements)
    steps += reduce(call.chip, call.name, outputs, max(1, total // outputs), dtype, "add")
    return OpCost(tuple(steps), 3.0 * total)


def _exponential(call: CostedCall) -> OpCost:
    """A polynomial of the matrix, squared several times."""
    data = call.operands[0]
    size = data.shape[-1]
    one = product(call, math.prod(data.shape[:-2]), size, size, size, data.dtype)
    added = sequence(call.chip, call.name, "add scaled_add", data.elements, data.element_type)
    return joined([repeated(one, 10)], added)


# -- convolutions ------------------------------------------------------------------------------------------------------


def _shape(call: CostedCall, data: CostedOperand, weight: CostedOperand, kind: ProductPass) -> ConvolutionShape:
    transposed, groups = bool(call.get("transposed", False)), int(call.get("groups", 1) or 1)
    space = len(weight.shape) - 2
    batched = len(data.shape) == space + 2
    out_channels = weight.shape[1] * groups if transposed else weight.shape[0]

    def per_dimension(name: str, otherwise: int) -> tuple[int, ...]:
        value: Any = call.get(name, otherwise)
        value = (value,) if isinstance(value, int) else tuple(value or (otherwise,))
        return value * space if len(value) == 1 else value

    return ConvolutionShape(
        data.shape[0] if batched else 1, data.shape[-space - 1], out_channels, data.shape[-space:],
        weight.shape[2:], per_dimension("stride", 1), per_dimension("padding", 0), per_dimension("dilation", 1),
        groups, transposed, per_dimension("output_padding", 0), kind,
    )  # fmt: skip


def _convolve(call: CostedCall, data: CostedOperand, weight: CostedOperand, kind: ProductPass) -> OpCost:
    if not data.elements or not weight.elements:
        return OpCost()
    shape = _shape(call, data, weight, kind)
    cost = plan_convolution(call.chip, shape, product_type(data.dtype), call.partials, call.proportion)
    return repeated(cost, _REAL_PRODUCTS) if data.dtype.is_complex else cost


def _convolution(call: CostedCall) -> OpCost:
    data, weight, *bias = call.operands
    cost, result = _convolve(call, data, weight, ProductPass.FORWARD), call.result
    if not bias:
        return cost
    channels = bias[0].elements
    whole = CostedOperand((result.elements // max(1, channels), channels), result.dtype)
    vector = CostedOperand((channels,), result.dtype, home=1)
    return joined([cost], binary_steps(call.chip, "bias", "add", whole, whole, vector, result.element_type))


def _convolution_backward(call: CostedCall) -> OpCost:
    gradient, data, weight = call["grad_output"], call["input"], call["weight"]
    wanted = call.get("output_mask", (True, True, True))
    costs = []
    if wanted[0]:
        costs.append(_convolve(call, data, weight, ProductPass.INPUT_GRADIENT))
    if wanted[1]:
        costs.append(_convolve(call, data, weight, ProductPass.WEIGHT_GRADIENT))
    steps: tuple[CostStep, ...] = ()
    if len(wanted) > 2 and wanted[2]:
        channels = math.prod(call.get("bias_sizes") or (1,))
        positions = gradient.elements // max(1, channels)
        steps = reduce(call.chip, "bias gradient", channels, positions, gradient.element_type, "add", False)
    return joined(costs, steps)


# -- attention ---------------------------------------------------------------------------------------------------------


def _heads(call: CostedCall) -> tuple[int, int, int, int, int]:
    """Groups, queries, keys, and the sizes of a query and of a value."""
    query, key, value = call["query"], call["key"], call["value"]
    return math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]


def _attention(call: CostedCall) -> OpCost:
    """Scores, scale, mask, softmax, and the sum of values."""
    chip, dtype = call.chip, call["query"].element_type
    groups, queries, keys, size, width = _heads(call)
    scores = product(call, groups, queries, size, keys, dtype)
    steps = sequence(chip, "attention", "multiply#", groups * queries * keys, dtype)
    mask = call.get("attn_mask", call.get("attn_bias"))
    whole = CostedOperand((groups, queries, keys), dtype)
    if isinstance(mask, CostedOperand):
        added = replace(mask, home=1, dtype=dtype, shape=mask.shape[-2:])
        steps += binary_steps(chip, "attention mask", "add", whole, whole, added, dtype)
    elif call.get("is_causal"):
        constant = CostedOperand((queries, keys), dtype, home=1)
        steps += binary_steps(chip, "attention mask", "add", whole, whole, constant, dtype)
    steps += softmax_steps(chip, "attention softmax", groups * queries, keys, dtype)
    if call.get("dropout_p", 0.0):
        steps += sequence(chip, "attention dropout", "dropout", groups * queries * keys, dtype)
    return joined([joined([scores], steps), product(call, groups, queries, keys, width, dtype)])


def _attention_backward(call: CostedCall) -> OpCost:
    """The gradients of values, weights, scores, queries and keys.

    The weights of the forward pass are taken as stored: a program for IPUs has no kernel that computes them again.
    """
    chip, dtype = call.chip, call["query"].element_type
    groups, queries, keys, size, width = _heads(call)
    of_values = product(call, groups, keys, queries, width, dtype)
    of_weights = product(call, groups, queries, width, keys, dtype)
    steps = softmax_gradient_steps(chip, "attention softmax", groups * queries, keys, dtype)
    if call.get("dropout_p", 0.0):
        steps += sequence(chip, "attention dropout", "dropout", groups * queries * keys, dtype)
    steps += sequence(chip, "attention", "multiply#", groups * queries * keys, dtype)
    of_queries = product(call, groups, queries, keys, size, dtype)
    of_keys = product(call, groups, keys, queries, size, dtype)
    return joined([of_values, joined([of_weights], steps), of_queries, of_keys])


_ATTENTION = (
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip

RULES: Table = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "matmul", "inner", "_scaled_mm"), _two),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation"), _with_addend),
    **dict.fromkeys(("addr", "outer", "ger"), _outer),
    "linear": _linear,
    "serialized_matmul": _serialized,
    "_grouped_mm": _grouped,
    "static_grouped_mm": _grouped,
    "_trilinear": _trilinear,
    "bilinear": _trilinear,
    "linalg_matrix_exp": _exponential,
    **dict.fromkeys(
        (
            "convolution", "_convolution", "convolution_overrideable", "conv1d", "conv2d", "conv3d",
            "mkldnn_convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "_slow_conv2d_forward",
        ),
        _convolution,
    ),
    **dict.fromkeys(("convolution_backward", "convolution_backward_overrideable"), _convolution_backward),
    **dict.fromkeys(_ATTENTION, _attention),
    **dict.fromkeys((f"{name}_backward" for name in _ATTENTION), _attention_backward),
}  # fmt: skip

__all__ = ["RULES", "joined", "product", "product_type", "repeated"]
