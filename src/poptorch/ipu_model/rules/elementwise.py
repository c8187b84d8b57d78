"""Rules for operations on single elements: arithmetic, comparisons, activation functions and their gradients."""

from __future__ import annotations

import torch

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.cycles import copying
from poptorch.ipu_model.cycles import elementwise as cycles
from poptorch.ipu_model.cycles.loops import BINARY_NAMES
from poptorch.ipu_model.cycles.scaled_add import scaled_add
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Rule, Table
from poptorch.ipu_model.rules.expressions import expression, sequence
from poptorch.ipu_model.rules.passes import bytes_to_align, distinct, each_element, elements_on_tile
from poptorch.ipu_model.steps import CostStep, OpCost

_SEQUENCES = """
    neg: negate
    reciprocal: inverse
    exp exp2 log sqrt rsqrt sigmoid tanh square erf sin cos tan asin log1p expm1 abs ceil floor round trunc relu: *
    sign sgn: signum
    isnan isinf isfinite logical_not bitwise_not: *
    isposinf isneginf signbit: compare#
    acos: asin subtract#
    atan: atan2#
    asinh acosh: square add# sqrt add log
    atanh: add# subtract# divide log multiply#
    sinh: exp inverse subtract multiply#
    cosh: exp inverse add multiply#
    log2 log10: log multiply#
    erfc: erf subtract#
    frac: trunc subtract
    deg2rad rad2deg: multiply#
    sinc: multiply# sin divide select#
    logit: subtract# divide log
    logit_backward: subtract# multiply divide
    linalg_cross: multiply multiply subtract
    _linalg_check_errors: compare#
    angle: atan2
    complex polar real imag: add
    conj_physical _conj_physical: negate
    silu: swish~
    gelu_tanh: gelu_tanh~
    gelu_none: gelu_erf
    relu6 hardtanh: clamp
    clamp: clamp
    clamp_min: maximum#
    clamp_max: minimum#
    threshold: compare# select#
    nan_to_num: isnan select# clamp
    tril triu: select#
    where: select
    masked_fill: select#
    masked_scatter: select
    floor_divide: divide floor
    fmod remainder: remainder
    atan2: atan2
    maximum minimum fmax fmin: maximum
    eq: compare
    ne: not_equal
    lt le gt ge: compare
    logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__: integer
    __lshift__ __rshift__ bitwise_left_shift bitwise_right_shift: integer
    logaddexp logaddexp2: maximum subtract subtract exp exp add log add
    xlogy: log multiply
    hypot: square square add sqrt
    copysign: abs compare# select
    ldexp: exp2 multiply
    heaviside: compare# select
    gcd lcm: remainder remainder remainder remainder
    nextafter: add
    addcdiv: divide scaled_add
    sigmoid_backward: sigmoid'
    tanh_backward: tanh'
    threshold_backward: relu'
    silu_backward: swish'
    gelu_backward_tanh: gelu_tanh'
    gelu_backward_none: gelu_erf'
    hardtanh_backward relu6_backward: compare# compare# integer select#
    native_dropout_backward: multiply multiply#
    fake_quantize_per_tensor_affine_cachemask: multiply# round clamp multiply#
    dropout: dropout
"""
"""Names of operations, then the passes of each; ``*`` stands for the name itself."""

_EXPRESSIONS = """
    leaky_relu: compare# multiply# select
    leaky_relu_backward: compare# multiply# select
    elu celu: exp subtract# multiply# compare# select
    selu: exp subtract# multiply# compare# select multiply#
    elu_backward celu_backward selu_backward: exp multiply# compare# select multiply
    hardsigmoid: multiply# add# clamp
    hardsigmoid_backward: compare# compare# integer multiply# select#
    hardswish: add# clamp multiply multiply#
    hardswish_backward: compare# compare# multiply# add# multiply select select#
    hardshrink: abs compare# select#
    hardshrink_backward softshrink_backward: abs compare# select#
    softshrink: abs subtract# maximum# signum multiply
    softplus: multiply# exp log1p compare# select
    softplus_backward: multiply# sigmoid multiply
    mish: exp log1p tanh multiply
    mish_backward: exp log1p tanh sigmoid multiply multiply add multiply
    log_sigmoid_forward log_sigmoid: negate exp log1p negate
    log_sigmoid_backward: sigmoid multiply
    _prelu_kernel prelu: compare# multiply select
    _prelu_kernel_backward: compare# multiply select multiply select#
    rrelu_with_noise rrelu_with_noise_functional rrelu: compare# multiply select
    rrelu_with_noise_backward: multiply
    erfinv: log1p sqrt multiply# add# multiply add# multiply add# multiply add# multiply
    digamma lgamma polygamma mvlgamma special_ndtri igamma igammac: log inverse multiply add# multiply add# add
    i0 special_i0e special_i1 special_i1e: square multiply add# multiply add# multiply add# multiply exp multiply
    special_bessel_j0 special_bessel_j1 special_bessel_y0: square multiply add# multiply add# multiply
    special_bessel_y1 special_modified_bessel_i0: square multiply add# multiply add# multiply
    special_erfcx special_log_ndtr special_entr: erf log multiply exp multiply
    special_zeta special_xlog1py: log1p multiply
    frexp: log floor exp2 divide
"""

_PRODUCT_OF_COMPLEX = 3
"""Passes that a product or quotient of complex numbers takes, compared with one of real numbers."""


def _rows(text: str) -> dict[str, str]:
    rows: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        names, _, words = line.partition(":")
        rows.update({name: words.strip().replace("*", name) for name in names.split()})
    return rows


SEQUENCES = _rows(_SEQUENCES)
EXPRESSIONS = _rows(_EXPRESSIONS)


def _compute_type(call: CostedCall) -> torch.dtype:
    """The type that arithmetic is done in: that of the widest operand, floating-point before whole numbers."""
    types = [o.element_type for o in call.operands if o.elements > 1 or len(call.operands) == 1] or [
        o.element_type for o in call.operands
    ]
    result = call.result.element_type
    kinds = [t for t in types if t != torch.bool] or types or [result]
    widest = max(kinds, key=lambda t: (t.is_floating_point, t.itemsize))
    return result if result.is_floating_point and not widest.is_floating_point else widest


def _largest(call: CostedCall) -> CostedOperand:
    """What decides about the work: the result, or an operand where the result is smaller."""
    return max((call.result, *call.operands), key=lambda operand: operand.elements)


def cast_step(chip: Architecture, name: str, elements: int, source: torch.dtype, target: torch.dtype) -> CostStep:
    """Convert one type into another."""
    wide = max(source, target, key=lambda dtype: dtype.itemsize)
    return each_element(chip, f"{name}: cast", elements, wide, lambda own: cycles.cast(own, source, target), "cast")


def _casts(call: CostedCall, dtype: torch.dtype, chip: Architecture) -> list[CostStep]:
    """Operands of another floating-point type are converted first."""
    steps = []
    for operand in call.operands:
        own = operand.element_type
        if operand.elements > 1 and own != dtype and own != torch.bool and dtype.is_floating_point:
            steps.append(cast_step(chip, call.name, operand.elements, own, dtype))
    return steps


def words_rule(words: str, fused: bool = False) -> Rule:
    """A rule for an operation that is these passes over its elements."""

    def rule(call: CostedCall) -> OpCost:
        return pointwise(call, words, fused)

    return rule


def pointwise(call: CostedCall, words: str, fused: bool = False) -> OpCost:
    """Passes over the elements of the largest tensor of a call."""
    chip, tensor, dtype = call.chip, _largest(call), _compute_type(call)
    steps = _casts(call, dtype, chip)
    moved, pieces = bytes_to_align(chip, tensor, call.operands, elements_on_tile(tensor.elements, dtype, chip))
    if fused:
        steps.append(expression(chip, call.name, words, tensor.elements, dtype, moved, pieces))
    else:
        split = [_with_number(call, word) for word in words.split()]
        steps += sequence(chip, call.name, split, tensor.elements, dtype, moved, pieces)
    return OpCost(tuple(steps), flops=float(tensor.elements * len(words.split())))


def _with_number(call: CostedCall, word: str) -> str:
    """A word for two operands, where one of them is a number."""
    sizes = [operand.elements for operand in call.operands]
    if word in BINARY_NAMES and sum(size > 1 for size in sizes) < 2 and max(sizes, default=0) > 1:
        return f"{word}#" if len(sizes) > 1 or len(call.arguments) > 1 else word
    return word


# -- two operands ------------------------------------------------------------------------------------------------------


def binary_steps(
    chip: Architecture,
    name: str,
    word: str,
    result: CostedOperand,
    left: CostedOperand,
    right: CostedOperand | None,
    dtype: torch.dtype,
) -> list[CostStep]:
    """An operation of two operands, of which one may be broadcast, or be a number."""
    operands = [left] if right is None else [left, right]
    small = min(operands, key=lambda operand: operand.elements)
    if right is None or small.elements == 1:
        if result.elements == 1:
            return sequence(chip, name, [word], 1, dtype)
        return sequence(chip, name, [f"{word}#"], result.elements, dtype)
    share = elements_on_tile(result.elements, dtype, chip)
    moved, pieces = bytes_to_align(chip, result, operands, share)
    if small.elements == result.elements:
        return sequence(chip, name, [word], result.elements, dtype, moved, pieces)
    needed = distinct(result.shape, small.shape, share)
    inner = small.shape[-1] != 1 if small.shape else False

    def work(own: int) -> float:
        length = max(1, min(needed, own))
        if inner:
            lengths = {length, -(-length // 4) * 4, -(-length // 8) * 8}
            laid_out = cycles.binary(word, own, dtype) + copying.copy(own * dtype.itemsize)
            return min(laid_out, *(cycles.vector_inner(word, each, max(own, each), dtype) for each in lengths))
        columns = max(1, -(-own // length))
        even = -(-columns // 4) * 4
        return min(cycles.vector_outer(word, length, each, dtype) for each in {columns, even})

    return [each_element(chip, f"{name}: {word}", result.elements, dtype, work, "broadcast", moved, pieces)]


def _arithmetic(word: str) -> Rule:
    def rule(call: CostedCall) -> OpCost:
        chip, dtype = call.chip, _compute_type(call)
        left, *others = call.operands
        right = others[0] if others else None
        result = call.result
        scaled = call.get("alpha", 1) not in (1, None) and right is not None and right.elements == result.elements
        if scaled and right is not None and left.elements == right.elements and word in ("add", "subtract"):
            return OpCost((_scaled_add(call, left, right),), flops=2.0 * result.elements)
        steps = _casts(call, dtype, chip)
        steps += binary_steps(chip, call.name, word, result, left, right, dtype)
        if result.dtype.is_complex and word in ("multiply", "divide"):
            steps *= _PRODUCT_OF_COMPLEX
        if call.get("rounding_mode") is not None:
            steps += sequence(chip, call.name, "floor", result.elements, dtype)
        return OpCost(tuple(steps), flops=float(result.elements))

    return rule


def _scaled_add(call: CostedCall, target: CostedOperand, source: CostedOperand, both_scaled: bool = False) -> CostStep:
    """``target + scale * source``: types may differ."""
    chip, dtype = call.chip, target.element_type
    share = elements_on_tile(target.elements, dtype, chip)
    moved, pieces = bytes_to_align(chip, target, (target, source), share)
    other = source.element_type

    def work(own: int) -> float:
        return scaled_add(own, dtype, other, both_scaled)

    return each_element(chip, call.name, target.elements, dtype, work, "scaled_add", moved, pieces)


def _add_product(call: CostedCall) -> OpCost:
    """``target + value * left * right``; with a number among the factors that is one pass."""
    target, *factors = call.operands
    large = [factor for factor in factors if factor.elements > 1]
    if len(large) == 1 and large[0].elements == target.elements:
        return OpCost((_scaled_add(call, target, large[0]),), flops=2.0 * target.elements)
    return pointwise(call, "multiply scaled_add")


def _interpolate(call: CostedCall) -> OpCost:
    """``start + weight * (end - start)``; with one number for all elements that is one pass."""
    start, end, *weight = call.operands
    if start.elements == end.elements and all(number.elements == 1 for number in weight):
        return OpCost((_scaled_add(call, start, end, both_scaled=True),), flops=3.0 * start.elements)
    return pointwise(call, "subtract multiply add")


# -- the rest ----------------------------------------------------------------------------------------------------------

_POWERS = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "inverse", 3: "square multiply", 4: "square square",
           -2: "square inverse"}  # fmt: skip


def _power(call: CostedCall) -> OpCost:
    exponent = call.get("exponent")
    if isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
        if exponent in (0, 1):
            return pointwise(call, "add#")
        return pointwise(call, _POWERS.get(exponent, "power#"))
    return pointwise(call, "power")


def _gelu(name: str) -> Rule:
    def rule(call: CostedCall) -> OpCost:
        return pointwise(call, SEQUENCES[f"{name}_{call.get('approximate', 'none')}"])

    return rule


def _gated(call: CostedCall) -> OpCost:
    """One half of the operand through a sigmoid, times the other half."""
    return pointwise(call, "sigmoid multiply")


def _gated_backward(call: CostedCall) -> OpCost:
    return pointwise(call, "sigmoid multiply multiply subtract# multiply multiply")


def _clamp(call: CostedCall) -> OpCost:
    if any(call.get(bound) is None for bound in ("min", "max")):
        return pointwise(call, "maximum#" if len(call.operands) < 2 else "maximum")
    return pointwise(call, "clamp")


def _where(call: CostedCall) -> OpCost:
    sizes = [operand.elements for operand in call.operands[1:]]
    return pointwise(call, "select" if min(sizes, default=1) > 1 else "select#")


def _buckets(call: CostedCall) -> OpCost:
    """Compare with every boundary, or search among sorted ones: one comparison for each halving."""
    boundaries = min(call.operands, key=lambda operand: operand.elements)
    words = "compare integer " * max(1, boundaries.elements.bit_length())
    return pointwise(call, words.strip(), fused=True)


RULES: Table = {
    **{name: words_rule(words) for name, words in SEQUENCES.items()},
    **{name: words_rule(words, fused=True) for name, words in EXPRESSIONS.items()},
    "add": _arithmetic("add"),
    "sub": _arithmetic("subtract"),
    "rsub": _arithmetic("subtract"),
    "mul": _arithmetic("multiply"),
    "div": _arithmetic("divide"),
    "maximum": _arithmetic("maximum"),
    "minimum": _arithmetic("minimum"),
    "fmax": _arithmetic("maximum"),
    "fmin": _arithmetic("minimum"),
    "addcmul": _add_product,
    "lerp": _interpolate,
    "pow": _power,
    "float_power": _power,
    "gelu": _gelu("gelu"),
    "gelu_backward": _gelu("gelu_backward"),
    "glu": _gated,
    "glu_backward": _gated_backward,
    "clamp": _clamp,
    "where": _where,
    "bucketize": _buckets,
    "searchsorted": _buckets,
    "isin": _buckets,
}

__all__ = ["EXPRESSIONS", "RULES", "SEQUENCES", "binary_steps", "cast_step", "pointwise", "words_rule"]
