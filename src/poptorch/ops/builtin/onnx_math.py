"""Arithmetic, activations, comparisons and reductions of ``ai.onnx``."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn import functional as F

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Float, Int, Ints, TypedAttribute
from poptorch.ops.builtin.definitions import onnx
from poptorch.ops.builtin.elementwise import divided, fmod, remainder
from poptorch.ops.builtin.values import aligned, axes_of, axis_of, values_of

Unary = Callable[[torch.Tensor], torch.Tensor]
Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


# -- one operand -------------------------------------------------------------------------------------------------------


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


_UNARY: tuple[tuple[str, int, str, Unary], ...] = (
    ("Abs", 6, "N", torch.abs),
    ("Acos", 7, "F", torch.acos),
    ("Acosh", 9, "F", torch.acosh),
    ("Asin", 7, "F", torch.asin),
    ("Asinh", 9, "F", torch.asinh),
    ("Atan", 7, "F", torch.atan),
    ("Atanh", 9, "F", torch.atanh),
    ("Ceil", 6, "F", torch.ceil),
    ("Cos", 7, "F", torch.cos),
    ("Cosh", 9, "F", torch.cosh),
    ("Erf", 9, "N", torch.erf),
    ("Exp", 6, "F", torch.exp),
    ("Floor", 6, "F", torch.floor),
    ("Identity", 6, "A", _identity),
    ("IsNaN", 9, "F", torch.isnan),
    ("Log", 6, "F", torch.log),
    ("Neg", 6, "N", torch.neg),
    ("Not", 6, "A", torch.logical_not),
    ("Reciprocal", 6, "F", torch.reciprocal),
    ("Relu", 6, "N", torch.relu),
    ("Round", 11, "F", torch.round),
    ("Sigmoid", 6, "F", torch.sigmoid),
    ("Sign", 9, "N", torch.sign),
    ("Sin", 7, "F", torch.sin),
    ("Sinh", 9, "F", torch.sinh),
    ("Softplus", 6, "F", F.softplus),
    ("Softsign", 6, "F", F.softsign),
    ("Sqrt", 6, "F", torch.sqrt),
    ("Tan", 7, "F", torch.tan),
    ("Tanh", 6, "F", torch.tanh),
)


def _add_unary(name: str, since: int, types: str, function: Unary) -> None:
    @onnx(name, since, types=types)
    def body(x: torch.Tensor) -> torch.Tensor:
        return function(x)


for _row in _UNARY:
    _add_unary(*_row)


@onnx("IsInf", 10, types="F", detect_negative=Int(1), detect_positive=Int(1))
def _is_inf(x: torch.Tensor, *, detect_negative: int, detect_positive: int) -> torch.Tensor:
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if detect_positive:
        return torch.isposinf(x)
    return torch.isneginf(x) if detect_negative else torch.zeros_like(x, dtype=torch.bool)


_FLOAT_MAX = 3.4028234663852886e38


@onnx("Clip", 6, types="F", min=Float(-_FLOAT_MAX), max=Float(_FLOAT_MAX))
def _clip(x: torch.Tensor, *, min: float, max: float) -> torch.Tensor:
    return x.clamp(None if min == -_FLOAT_MAX else min, None if max == _FLOAT_MAX else max)


@onnx("Clip", 11, types="F")
def _clip_to_inputs(x: torch.Tensor, low: torch.Tensor | None = None, high: torch.Tensor | None = None) -> torch.Tensor:
    bounds = [
        None if given is None or not given.numel() else float(values_of(given, what)[0])
        for given, what in ((low, "min"), (high, "max"))
    ]
    return x.clone() if bounds == [None, None] else x.clamp(bounds[0], bounds[1])


@onnx("Elu", types="F", alpha=Float(1.0))
def _elu(x: torch.Tensor, *, alpha: float) -> torch.Tensor:
    return F.elu(x, alpha)


@onnx("HardSigmoid", types="F", alpha=Float(0.2), beta=Float(0.5))
def _hard_sigmoid(x: torch.Tensor, *, alpha: float, beta: float) -> torch.Tensor:
    return (x * alpha + beta).clamp(0, 1)


@onnx("LeakyRelu", types="F", alpha=Float(0.01))
def _leaky_relu(x: torch.Tensor, *, alpha: float) -> torch.Tensor:
    return F.leaky_relu(x, alpha)


@onnx("Selu", types="F", alpha=Float(1.67326319217681884765625), gamma=Float(1.05070102214813232421875))
def _selu(x: torch.Tensor, *, alpha: float, gamma: float) -> torch.Tensor:
    return gamma * F.elu(x, alpha)


@onnx("Shrink", 9, types="N", lambd=Float(0.5), bias=Float(0.0))
def _shrink(x: torch.Tensor, *, lambd: float, bias: float) -> torch.Tensor:
    zero = torch.zeros((), dtype=x.dtype)
    shift = torch.full((), bias, dtype=x.dtype)
    return torch.where(x < -lambd, x + shift, torch.where(x > lambd, x - shift, zero))


@onnx("ThresholdedRelu", 10, types="F", alpha=Float(1.0))
def _thresholded_relu(x: torch.Tensor, *, alpha: float) -> torch.Tensor:
    return torch.where(x > alpha, x, torch.zeros((), dtype=x.dtype))


def _flattened(function: Callable[..., torch.Tensor], x: torch.Tensor, axis: int) -> torch.Tensor:
    """Over all axes from ``axis`` on together, as before version 13."""
    # The axis may be the rank: then each row has one element.
    axis = axis + x.dim() if axis < 0 else axis
    if not 0 <= axis <= x.dim():
        raise createPoptorchError(f"The axis {axis} is outside the acceptable range of a tensor of rank {x.dim()}.")
    if axis == x.dim() - 1:
        return function(x, axis)
    rows = x.reshape([*x.shape[:axis], -1])
    return function(rows, axis).reshape(x.shape)


@onnx("Softmax", types="F", axis=Int(1))
def _softmax(x: torch.Tensor, *, axis: int) -> torch.Tensor:
    return _flattened(torch.softmax, x, axis)


@onnx("LogSoftmax", types="F", axis=Int(1))
def _log_softmax(x: torch.Tensor, *, axis: int) -> torch.Tensor:
    return _flattened(torch.log_softmax, x, axis)


# -- two operands ------------------------------------------------------------------------------------------------------


def _power(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.pow(a, b).to(a.dtype)


_BINARY: tuple[tuple[str, str, Binary], ...] = (
    ("Add", "N", torch.add),
    ("And", "A", torch.logical_and),
    ("Div", "N", divided),
    ("Equal", "A", torch.eq),
    ("Greater", "N", torch.gt),
    ("Less", "N", torch.lt),
    ("Mul", "N", torch.mul),
    ("Or", "A", torch.logical_or),
    ("Pow", "N", _power),
    ("Sub", "N", torch.sub),
)


def _add_binary(name: str, types: str, function: Binary) -> None:
    @onnx(name, 6, types=types, broadcast=Int(0), axis=Int(None))
    def aligned_body(a: torch.Tensor, b: torch.Tensor, *, broadcast: int, axis: int | None) -> torch.Tensor:
        return function(a, aligned(a, b, broadcast, axis))

    @onnx(name, 7, types=types)
    def body(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return function(a, b)


for _binary in _BINARY:
    _add_binary(*_binary)


@onnx("Mod", 10, types="N", fmod=Int(0))
def _mod(a: torch.Tensor, b: torch.Tensor, **given: int) -> torch.Tensor:
    if given["fmod"] not in (0, 1):
        raise createPoptorchError(f"fmod must be 0 or 1, not {given['fmod']}.")
    if not given["fmod"] and a.is_floating_point() and not b.is_floating_point():
        b = b.to(a.dtype)
    return fmod(a, b) if given["fmod"] else remainder(a, b)


# -- any number of operands --------------------------------------------------------------------------------------------


def _mean(*tensors: torch.Tensor) -> torch.Tensor:
    return functools.reduce(torch.add, tensors) / len(tensors)


_VARIADIC: tuple[tuple[str, Callable[..., torch.Tensor]], ...] = (
    ("Max", lambda *tensors: functools.reduce(torch.maximum, tensors)),
    ("Mean", _mean),
    ("Min", lambda *tensors: functools.reduce(torch.minimum, tensors)),
    ("Sum", lambda *tensors: functools.reduce(torch.add, tensors)),
)


def _add_variadic(name: str, function: Callable[..., torch.Tensor]) -> None:
    @onnx(name, 6, types="N")
    def equal_shapes(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        for other in others:
            aligned(first, other, 0, None)
        return function(first, *others) if others else first.clone()

    @onnx(name, 8, types="N")
    def broadcast(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return function(first, *others) if others else first.clone()


for _variadic in _VARIADIC:
    _add_variadic(*_variadic)


# -- products ----------------------------------------------------------------------------------------------------------


@onnx("MatMul", types="N")
def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.matmul(a, b)


_GEMM: dict[str, TypedAttribute] = {"alpha": Float(1.0), "beta": Float(1.0), "transA": Int(0), "transB": Int(0)}


@onnx("Gemm", 6, types="N", attributes=_GEMM, broadcast=Int(0))
def _gemm_with_flag(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    alpha: float,
    beta: float,
    transA: int,
    transB: int,
    broadcast: int,
) -> torch.Tensor:
    shape = [a.shape[1 if transA else 0], b.shape[0 if transB else 1]]
    if not broadcast and list(c.shape) != shape:
        raise createPoptorchError(f"C has shape {list(c.shape)} instead of {shape}, and 'broadcast' is 0.")
    return _gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)


def _gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    alpha: float,
    beta: float,
    transA: int,
    transB: int,
) -> torch.Tensor:
    if a.dim() != 2 or b.dim() != 2:
        raise createPoptorchError(f"A and B must be matrices, not of shapes {list(a.shape)} and {list(b.shape)}.")
    a, b = (a.t() if transA else a), (b.t() if transB else b)
    product = a @ b
    product = product if alpha == 1 else alpha * product
    if c is None or not c.numel():
        return product
    return product + (c if beta == 1 else beta * c)


@onnx("Gemm", 7, types="N", attributes=_GEMM)
def _gemm_with_c(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, **settings: float) -> torch.Tensor:
    return _gemm(a, b, c, **settings)  # type: ignore[arg-type]


onnx("Gemm", 11, types="N", attributes=_GEMM)(_gemm)


# -- reductions --------------------------------------------------------------------------------------------------------

Reduction = Callable[[torch.Tensor, "list[int]", bool], torch.Tensor]


def _product(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _mean_over(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    return x.mean(axes, keepdim=keep) if x.is_floating_point() else x.sum(axes, keepdim=keep) // _size(x, axes)


def _size(x: torch.Tensor, axes: list[int]) -> int:
    return functools.reduce(lambda count, axis: count * x.shape[axis], axes, 1)


_REDUCTIONS: tuple[tuple[str, Reduction], ...] = (
    ("ReduceL1", lambda x, axes, keep: x.abs().sum(axes, keepdim=keep)),
    ("ReduceL2", lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep)),
    ("ReduceLogSum", lambda x, axes, keep: x.sum(axes, keepdim=keep).log()),
    ("ReduceLogSumExp", lambda x, axes, keep: torch.logsumexp(x, axes, keep)),
    ("ReduceMax", lambda x, axes, keep: x.amax(axes, keep)),
    ("ReduceMean", _mean_over),
    ("ReduceMin", lambda x, axes, keep: x.amin(axes, keep)),
    ("ReduceProd", _product),
    ("ReduceSum", lambda x, axes, keep: x.sum(axes, keepdim=keep)),
    ("ReduceSumSquare", lambda x, axes, keep: (x * x).sum(axes, keepdim=keep)),
)


def _add_reduction(name: str, function: Reduction) -> None:
    @onnx(name, types="N", axes=Ints(None), keepdims=Int(1))
    def body(x: torch.Tensor, *, axes: list[int] | None, keepdims: int) -> torch.Tensor:
        named = axes_of(axes, x.dim())
        return function(x, named, bool(keepdims)).to(x.dtype) if named else function(x.reshape(1), [0], False)


for _reduction in _REDUCTIONS:
    _add_reduction(*_reduction)


def _add_arg(name: str, function: Callable[..., torch.Tensor]) -> None:
    @onnx(name, types="N", differentiable=False, axis=Int(0), keepdims=Int(1))
    def body(x: torch.Tensor, *, axis: int, keepdims: int) -> torch.Tensor:
        return function(x, axis_of(axis, x.dim()), bool(keepdims)).to(torch.int32)


_add_arg("ArgMax", torch.argmax)
_add_arg("ArgMin", torch.argmin)


@onnx("CumSum", 11, types=("N", "I"), exclusive=Int(0), reverse=Int(0))
def _cumulative_sum(x: torch.Tensor, axis: torch.Tensor, *, exclusive: int, reverse: int) -> torch.Tensor:
    along = axis_of(int(values_of(axis, "axis")[0]), x.dim())
    values = x.flip(along) if reverse else x
    total = values.cumsum(along).to(x.dtype)
    if exclusive:
        total = total - values
    return total.flip(along) if reverse else total
