"""Element by element (section 3.4)."""

from __future__ import annotations

import torch
from op_samples import between, bools, const, ints, normal, op

X = normal(3, 4)
Y = normal(3, 4, seed=1)
ROW = normal(4)
POSITIVE = between(0.2, 3.0, 3, 4)
UNIT = between(-0.9, 0.9, 3, 4)
ABOVE_ONE = between(1.1, 4.0, 3, 4)
AWAY_FROM_ZERO = torch.where(Y.abs() < 0.3, torch.full_like(Y, 0.7), Y)
INTEGERS = ints(-9, 9, 3, 4, dtype=torch.int32)
J = ints(1, 5, 3, 4, dtype=torch.int32)
B = bools(3, 4)
C = bools(3, 4, seed=1)

SMOOTH = (
    "abs", "asinh", "atan", "cos", "cosh", "erf", "erfc", "exp", "expm1", "neg", "sigmoid", "sin", "sinh", "square",
    "tan", "tanh", "frac", "positive", "sinc", "deg2rad", "rad2deg", "exp2", "nan_to_num", "relu",
)  # fmt: skip
ON_POSITIVE = ("log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt", "lgamma", "digamma", "i0")
ON_UNIT = ("acos", "asin", "atanh", "erfinv")
FLAT = ("ceil", "floor", "round", "sign", "trunc")
ON_INTEGERS = ("abs", "neg", "sign", "square", "bitwise_not")


def _unary(name: str) -> object:
    return getattr(torch, name)


ROWS = [
    *(op(name, _unary(name), X) for name in SMOOTH),
    *(op(name, _unary(name), POSITIVE) for name in ON_POSITIVE),
    *(op(name, _unary(name), UNIT) for name in ON_UNIT),
    op("acosh", torch.acosh, ABOVE_ONE),
    *(const(name, _unary(name), X * 3) for name in FLAT),
    *(op(f"{name} zero gradient", _unary(name), X * 3) for name in FLAT),
    *(const(f"{name} int", _unary(name), INTEGERS) for name in ON_INTEGERS),
    op("round decimals", lambda x: torch.round(x, decimals=1), X),
    op("logit", lambda x: torch.logit(x, eps=1e-6), between(0.1, 0.9, 3, 4)),
    op("mvlgamma", lambda x: torch.mvlgamma(x, 2), ABOVE_ONE),
    # two operands
    op("add", torch.add, X, Y),
    op("add alpha", lambda x, y: torch.add(x, y, alpha=3), X, Y),
    op("add broadcast", torch.add, X, ROW),
    op("add scalar left", lambda x: 2 + x, X),
    op("add scalar right", lambda x: x + 2.5, X),
    const("add int float scalar", lambda i: i + 1.5, INTEGERS),
    op("sub", torch.sub, X, Y),
    op("sub alpha", lambda x, y: torch.sub(x, y, alpha=0.5), X, Y),
    op("rsub", lambda x: 3 - x, X),
    op("mul", torch.mul, X, Y),
    op("mul scalar", lambda x: 0.5 * x, X),
    op("div", torch.div, X, AWAY_FROM_ZERO),
    op("div scalar", lambda x: x / 3, X),
    op("div left scalar", lambda y: 3 / y, AWAY_FROM_ZERO),
    const("div ints", torch.div, INTEGERS, J),
    const("div trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), X, AWAY_FROM_ZERO),
    const("div floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), INTEGERS, J),
    op("true_divide", torch.true_divide, X, AWAY_FROM_ZERO),
    const("floor_divide", torch.floor_divide, X, AWAY_FROM_ZERO),
    const("floor_divide int", lambda i, j: i // j, INTEGERS, J),
    const("floor_divide scalar", lambda x: x // 2, X * 5),
    op("fmod", torch.fmod, X * 5, AWAY_FROM_ZERO.detach() * 2),
    op("fmod scalar", lambda x: torch.fmod(x, 1.5), X * 5),
    const("fmod int", torch.fmod, INTEGERS, J),
    const("remainder", torch.remainder, X * 5, AWAY_FROM_ZERO),
    const("remainder scalar", lambda x: x % -1.5, X * 5),
    const("remainder int", torch.remainder, INTEGERS, J),
    const("remainder left scalar", lambda j: 17 % j, J),
    op("pow", torch.pow, POSITIVE, Y),
    op("pow scalar exponent", lambda x: x**3, X),
    op("pow half exponent", lambda x: x**0.5, POSITIVE),
    op("pow negative exponent", lambda x: x**-2, POSITIVE),
    op("pow scalar base", lambda x: 2.0**x, X),
    const("pow int", lambda i: i**2, INTEGERS),
    op("atan2", torch.atan2, X, AWAY_FROM_ZERO),
    op("maximum", torch.maximum, X, Y),
    op("minimum", torch.minimum, X, Y),
    op("max two", torch.max, X, Y),
    op("min two", torch.min, X, Y),
    const("maximum int", torch.maximum, INTEGERS, J),
    op("fmax", torch.fmax, X, Y),
    op("fmin", torch.fmin, X, Y),
    op("hypot", torch.hypot, X, Y),
    op("copysign", torch.copysign, X, Y),
    op("logaddexp", torch.logaddexp, X, Y),
    op("logaddexp2", torch.logaddexp2, X, Y),
    op("xlogy", torch.xlogy, X, POSITIVE),
    op("lerp", lambda x, y: torch.lerp(x, y, 0.3), X, Y),
    op("lerp tensor", torch.lerp, X, Y, POSITIVE),
    op("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), X, Y, POSITIVE),
    op("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), X, Y, POSITIVE),
    op("heaviside-free sign mix", lambda x, y: torch.sign(x) * y, X, Y),
    const("heaviside", torch.heaviside, X, Y),
    # bounds
    op("clamp", lambda x: torch.clamp(x, -0.5, 0.5), X),
    op("clamp min only", lambda x: torch.clamp(x, min=0.1), X),
    op("clamp max only", lambda x: torch.clamp(x, max=0.1), X),
    op("clamp min above max", lambda x: torch.clamp(x, 0.5, -0.5), X),
    op("clamp tensors", lambda x, a: torch.clamp(x, min=a - 1, max=a + 1), X, Y * 0.1),
    op("clamp_min", lambda x: torch.clamp_min(x, 0.2), X),
    op("clamp_max", lambda x: torch.clamp_max(x, 0.2), X),
    op("clamp_min tensor", torch.clamp_min, X, ROW),
    op("clamp_max tensor", torch.clamp_max, X, ROW),
    const("clamp int", lambda i: i.clamp(-2, 3), INTEGERS),
    const("clamp int float bounds", lambda i: i.clamp(-2.5, 3.5), INTEGERS),
    op("clip", lambda x: x.clip(-0.5, 0.5), X),
    # bits and truth
    *(const(f"{name} int", getattr(torch, name), INTEGERS, J) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    *(const(f"{name} bool", getattr(torch, name), B, C) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    const("and operator", lambda i, j: i & j, INTEGERS, J),
    const("or operator", lambda i, j: i | j, INTEGERS, J),
    const("xor operator", lambda i, j: i ^ j, INTEGERS, J),
    const("and scalar", lambda i: i & 3, INTEGERS),
    const("dunder and is not in place", lambda b, c: (b.__and__(c), b), B, C),
    const("invert bool", lambda b: ~b, B),
    const("shift", lambda j: (j << 2, j >> 1), J),
    *(const(f"{n} bool", getattr(torch, n), B, C) for n in ("logical_and", "logical_or", "logical_xor")),
    *(const(f"{n} float", getattr(torch, n), X.round(), Y.round()) for n in ("logical_and", "logical_or")),
    const("logical_not", torch.logical_not, X.round()),
    const("bool add is or", torch.add, B, C),
    const("bool mul is and", torch.mul, B, C),
    const("bool and int promotes", torch.add, B, INTEGERS),
    op("bool and float promotes", torch.mul, B, X),
]
