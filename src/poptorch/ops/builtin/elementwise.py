"""Operators of ``ai.graphcore`` that compute element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional as F

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Float, Int, Ints, String
from poptorch.ops.builtin.definitions import Situation, graphcore
from poptorch.ops.hints import NOP
from poptorch.ops.printing import ipu_print_tensor


@graphcore("Atan2", types="F")
def _atan2(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.atan2(y, x)


_BINARY: dict[str, Callable[..., torch.Tensor]] = {
    "Mul": torch.mul,
    "Div": torch.div,
    "Add": torch.add,
    "Sub": torch.sub,
    "Pow": torch.pow,
}


@graphcore("BinaryConstScalar", types="N", value=Float(), op=String(), scalar_in_index=Int())
def _binary_const_scalar(x: torch.Tensor, *, value: float, op: str, scalar_in_index: int) -> torch.Tensor:
    if op not in _BINARY:
        raise createPoptorchError(f"Unrecognised opType {op!r}: it must be one of {', '.join(_BINARY)}.")
    if scalar_in_index not in (0, 1):
        raise createPoptorchError(f"scalar_in_index must be 0 or 1, not {scalar_in_index}.")
    scalar = torch.full((), value, dtype=x.dtype)
    first, second = (x, scalar) if scalar_in_index == 1 else (scalar, x)
    if op == "Div":
        return divided(first, second)
    return _BINARY[op](first, second)


def divided(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The quotient; that of integers has no fraction, as in C."""
    integers = not (a.is_floating_point() or b.is_floating_point())
    return torch.div(a, b, rounding_mode="trunc" if integers else None)


@graphcore("BitwiseNot", types="I")
def _bitwise_not(x: torch.Tensor) -> torch.Tensor:
    return ~x


@graphcore("BitwiseAnd", types="I")
def _bitwise_and(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a & b


@graphcore("BitwiseOr", types="I")
def _bitwise_or(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a | b


@graphcore("BitwiseXor", types="I")
def _bitwise_xor(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a ^ b


@graphcore("BitwiseXnor", types="I")
def _bitwise_xnor(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ~(a ^ b)


@graphcore("Detach", differentiable=False)
def _detach(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@graphcore("Expm1", types="F")
def _expm1(x: torch.Tensor) -> torch.Tensor:
    return torch.expm1(x)


@graphcore("Log1p", types="F")
def _log1p(x: torch.Tensor) -> torch.Tensor:
    return torch.log1p(x)


@graphcore("Fmod", types="N")
def fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The remainder with the sign of ``a``; no gradient reaches ``b``."""
    return torch.fmod(a, b.detach())


@graphcore("Remainder", types="N")
def remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The remainder with the sign of ``b``."""
    return torch.remainder(a, b)


@graphcore("Gelu", types="F")
def _gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


@graphcore("GeluErf", types="F")
def _gelu_erf(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


@graphcore("IncrementMod", types="N", differentiable=False, increment=Float(), modulus=Float())
def _increment_mod(x: torch.Tensor, *, increment: float, modulus: float) -> torch.Tensor:
    return torch.fmod(x + torch.full((), increment, dtype=x.dtype), torch.full((), modulus, dtype=x.dtype))


@graphcore("NearbyInt", types="F")
def _nearby_int(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x)


@graphcore("Round", types="F")
def _round(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x)


@graphcore("Nop")
def _nop(x: torch.Tensor) -> torch.Tensor:
    return NOP(x)


@graphcore("AutoLossScaleProxy")
def _auto_loss_scale_proxy(x: torch.Tensor) -> torch.Tensor:
    return NOP(x)


_FLOAT_FORMATS = ("auto", "fixed", "scientific", "none")


@graphcore(
    "PrintTensor",
    print_gradient=Int(1),
    title=String(""),
    summariseThreshold=Int(1000),
    edgeItems=Int(3),
    maxLineWidth=Int(75),
    digits=Int(8),
    floatFormat=Int(0),
    separator=Int(32),
    openBracket=Int(91),
    closeBracket=Int(93),
)
def _print_tensor(
    x: torch.Tensor,
    *,
    print_gradient: int,
    title: str,
    summariseThreshold: int,
    edgeItems: int,
    maxLineWidth: int,
    digits: int,
    floatFormat: int,
    separator: int,
    openBracket: int,
    closeBracket: int,
) -> torch.Tensor:
    if not 0 <= floatFormat < len(_FLOAT_FORMATS):
        raise createPoptorchError(f"floatFormat must be 0 to {len(_FLOAT_FORMATS) - 1}, not {floatFormat}.")
    for name, code in (("separator", separator), ("openBracket", openBracket), ("closeBracket", closeBracket)):
        if not 0 < code < 128:
            raise createPoptorchError(f"{name} must be the code of an ASCII character, not {code}.")
    return ipu_print_tensor(
        x,
        title,
        bool(print_gradient),
        summarise_threshold=summariseThreshold,
        edge_items=edgeItems,
        max_line_width=maxLineWidth,
        digits=digits,
        float_format=_FLOAT_FORMATS[floatFormat],
        separator=chr(separator),
        open_bracket=chr(openBracket),
        close_bracket=chr(closeBracket),
    )


@graphcore("Scale", types="F", scale=Float(1.0))
def _scale(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    return x * scale


@graphcore("ScaledAdd", types="F", scale0=Float(1.0), scale1=Float(1.0))
def _scaled_add(
    t0: torch.Tensor,
    t1: torch.Tensor,
    s0: torch.Tensor | None = None,
    s1: torch.Tensor | None = None,
    *,
    scale0: float,
    scale1: float,
) -> torch.Tensor:
    if t0.shape != t1.shape:
        raise createPoptorchError(f"The terms must have one shape, not {list(t0.shape)} and {list(t1.shape)}.")
    if s0 is not None and s1 is None:
        s0, s1 = None, s0
    for scale in (s0, s1):
        if scale is not None and scale.numel() != 1:
            raise createPoptorchError(f"A scale must have one element, not the shape {list(scale.shape)}.")
    first = t0 * (scale0 if s0 is None else s0.reshape(()))
    second = t1 * (scale1 if s1 is None else s1.reshape(()))
    return (first + second).to(t0.dtype)


@graphcore("ShapedDropout", types="F", shape=Ints(), ratio=Float(0.5))
def _shaped_dropout(x: torch.Tensor, *, shape: list[int], ratio: float, at: Situation) -> torch.Tensor:
    check_ratio(ratio)
    padded = [1] * (x.dim() - len(shape)) + shape
    if len(shape) > x.dim() or any(a not in (1, b) for a, b in zip(padded, x.shape, strict=True)):
        raise createPoptorchError(
            f"ShapedDropout: incompatible input tensor and dropout shape: {list(x.shape)} and {shape}."
        )
    if not at.training:
        return NOP(x)
    return x * F.dropout(torch.ones(shape, dtype=x.dtype), ratio)


def check_ratio(ratio: float) -> None:
    """Refuse a share of dropped elements that leaves none, or is no share."""
    if not 0 <= ratio < 1 or math.isnan(ratio):
        raise createPoptorchError(f"Ratio value {ratio} is not valid. Please use a value in the interval [0,1)")


@graphcore("Square", types="N")
def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


@graphcore("Swish", types="F")
def _swish(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x)
