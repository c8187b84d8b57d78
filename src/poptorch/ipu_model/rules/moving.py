"""Rules for copies, conversions, creation of tensors and random numbers."""

from __future__ import annotations

import torch

from poptorch.ipu_model.cycles import elementwise, randomness
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Rule, Table
from poptorch.ipu_model.rules.elementwise import cast_step
from poptorch.ipu_model.rules.expressions import sequence
from poptorch.ipu_model.rules.passes import each_element, move
from poptorch.ipu_model.rules.reductions import bitonic
from poptorch.ipu_model.steps import CostStep, OpCost


def _written(call: CostedCall) -> CostedOperand:
    return max((call.result, *call.results), key=lambda operand: operand.elements)


def _clone(call: CostedCall) -> OpCost:
    """A copy inside tiles; where the order of elements changes, they change their tiles too."""
    source, result = call.operands[0], call.result
    return OpCost((_copy(call, result, reordered=source.strides != result.strides and not source.is_contiguous),))


def _copy(call: CostedCall, result: CostedOperand, reordered: bool) -> CostStep:
    return move(
        call.chip, call.name, result.elements, result.element_type, aligned=not reordered, exchanged=reordered
    )  # fmt: skip


def _convert(call: CostedCall) -> OpCost:
    """A conversion of types, and a copy where the order changes."""
    source, result = call.operands[0], call.result
    return OpCost((*cast_steps(call, source, result), *_reordering(call, source, result)))


def _reordering(call: CostedCall, source: CostedOperand, result: CostedOperand) -> list[CostStep]:
    same = source.strides == result.strides or source.is_contiguous
    return [] if same else [_copy(call, result, reordered=True)]


def cast_steps(call: CostedCall, source: CostedOperand, result: CostedOperand) -> list[CostStep]:
    """Convert one type into another; equal types are copied."""
    before, after = source.element_type, result.element_type
    if before == after:
        return [_copy(call, result, reordered=False)]
    return [cast_step(call.chip, call.name, result.elements, before, after)]


def _assign(call: CostedCall) -> OpCost:
    """Write a tensor into another, of another type or mapping perhaps."""
    target, source = call.operands[0], call.operands[-1]
    if source.elements < target.elements:
        return _moved(call)
    if source.element_type != target.element_type:
        return OpCost(tuple(cast_steps(call, source, target)))
    return OpCost((_copy(call, target, reordered=source.home != target.home),))


def _moved(call: CostedCall) -> OpCost:
    """Elements that change their places: joined, repeated, padded, turned round."""
    result = _written(call)
    return OpCost((move(call.chip, call.name, result.elements, result.element_type, _whole_rows(call)),))


def _whole_rows(call: CostedCall) -> bool:
    """Whether elements move in pieces of 64 bits: all tensors have rows of that size."""
    tensors = [o for o in (*call.operands, *call.results) if o.shape]
    return all(o.shape[-1] * o.element_type.itemsize % 8 == 0 and o.is_contiguous for o in tensors)


def _pad_backward(call: CostedCall) -> OpCost:
    """Copies, and sums of what was written more than once."""
    result = _written(call)
    steps = [move(call.chip, call.name, result.elements, result.element_type, aligned=False)]
    return OpCost((*steps, *sequence(call.chip, call.name, "add", result.elements, result.element_type)))


def _fill(call: CostedCall) -> OpCost:
    result = _written(call)
    return OpCost((fill_step(call, result),))


def fill_step(call: CostedCall, result: CostedOperand) -> CostStep:
    """The same number everywhere; each worker fills a part."""
    dtype = result.element_type
    return each_element(call.chip, call.name, result.elements, dtype, lambda n: elementwise.fill(n, dtype), "fill")


def _undefined(call: CostedCall) -> OpCost:
    """Memory without contents: nothing runs."""
    return OpCost()


def _counting(call: CostedCall) -> OpCost:
    result = _written(call)
    dtype = result.element_type
    step = each_element(call.chip, call.name, result.elements, dtype, lambda n: elementwise.iota(n, dtype), "fill")
    scaled = sequence(call.chip, call.name, "multiply# add#" if dtype.is_floating_point else "", result.elements, dtype)
    return OpCost((step, *scaled))


def _random(kind: str, after: str = "") -> Rule:
    def rule(call: CostedCall) -> OpCost:
        result = call.result
        dtype = result.element_type
        cycles = {"uniform": randomness.uniform, "bernoulli": randomness.bernoulli, "dropout": randomness.dropout,
                  "truncated": randomness.truncated_normal}[kind]  # fmt: skip
        step = each_element(call.chip, call.name, result.elements, dtype, lambda n: cycles(n, dtype), "random")
        real = dtype if dtype.is_floating_point else torch.float32
        return OpCost((step, *sequence(call.chip, call.name, after, result.elements, real)), float(result.elements))

    return rule


def _dropout(call: CostedCall) -> OpCost:
    """Zero some elements, scale the others, and keep the mask where one is asked for."""
    cost = _random("dropout")(call)
    mask = call.results[1:2]
    steps = (sequence(call.chip, call.name, "not_equal#", m.elements, call.result.element_type) for m in mask)
    return OpCost((*cost.steps, *(step for found in steps for step in found)), cost.flops)


def _permutation(call: CostedCall) -> OpCost:
    result = call.result
    keys = _random("uniform")(call).steps
    count = result.elements
    return OpCost((*keys, *bitonic(call.chip, call.name, count, count, count, torch.float32)))


_MOVED = (
    "cat", "stack", "constant_pad_nd", "repeat", "roll", "flip", "rot90", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "block_diag", "diag_embed", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
    "replication_pad1d", "replication_pad2d", "replication_pad3d", "repeat_interleave", "_reshape_copy", "im2col",
    "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter", "slice_backward", "select_backward",
    "diagonal_backward", "expand_copy", "resize", "contiguous", "_pad_circular", "pad", "vstack", "hstack", "tile",
    "masked_scatter_backward", "new_empty_strided_copy", "kron", "cartesian_prod", "combinations", "meshgrid",
    "native_channel_shuffle", "_pack_padded_sequence", "_pad_packed_sequence", "as_strided_copy", "unfold_copy",
    "split_copy", "split_with_sizes_copy", "unbind_copy", "slice_copy", "select_copy", "permute_copy",
    "transpose_copy", "t_copy", "diagonal_copy",
)  # fmt: skip
_ADDED_UP = (
    "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward", "replication_pad1d_backward",
    "replication_pad2d_backward", "replication_pad3d_backward", "col2im", "unfold_backward", "im2col_backward",
)  # fmt: skip
_FILLED = (
    "full", "full_like", "ones", "ones_like", "zeros", "zeros_like", "new_zeros", "new_full", "new_ones", "fill",
    "zero", "scalar_tensor", "eye", "_efficientzerotensor", "fill_diagonal", "hann_window", "hamming_window",
    "bartlett_window",
)  # fmt: skip

RULES: Table = {
    **dict.fromkeys(("clone", "lift_fresh_copy", "view_copy", "alias_copy", "detach_copy", "unsqueeze_copy"), _clone),
    "squeeze_copy": _clone,
    "_to_copy": _convert,
    "convert_element_type": _convert,
    "copy": _assign,
    **dict.fromkeys(_MOVED, _moved),
    **dict.fromkeys(_ADDED_UP, _pad_backward),
    **dict.fromkeys(_FILLED, _fill),
    **dict.fromkeys(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"), _undefined),
    "empty_permuted": _undefined,
    **dict.fromkeys(("unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "set"), _undefined),  # views on an IPU
    **dict.fromkeys(("arange", "linspace", "logspace", "range", "tril_indices", "triu_indices"), _counting),
    **dict.fromkeys(("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "uniform", "random"),
                    _random("uniform")),
    "normal": _random("uniform", "multiply# add#"),
    "normal_functional": _random("uniform", "multiply# add#"),
    "bernoulli": _random("bernoulli"),
    "exponential": _random("uniform", "log multiply#"),
    "geometric": _random("uniform", "log multiply# ceil"),
    "cauchy": _random("uniform", "tan multiply# add#"),
    "log_normal": _random("uniform", "multiply# add# exp"),
    "poisson": _random("uniform", "exp multiply compare add exp multiply compare add"),
    "multinomial": _random("uniform", "log divide maximum"),
    "binomial": _random("uniform", "exp multiply compare add"),
    "_standard_gamma": _random("truncated", "log multiply exp"),
    "_sample_dirichlet": _random("truncated", "log multiply exp divide"),
    "native_dropout": _dropout,
    "randperm": _permutation,
}  # fmt: skip

__all__ = ["RULES", "cast_steps", "fill_step"]
