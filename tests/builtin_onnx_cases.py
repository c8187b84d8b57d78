"""The operators of ``ai.onnx`` beside what they mean; see :mod:`builtin_cases`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from builtin_cases import CASES, OWN, G, K, P, R, U, ints, onnx

# pytest runs this file once more when it looks for examples in docstrings; the list is the same one.
del CASES[OWN:]

# -- arithmetic --------------------------------------------------------------------------------------------------------

for _name, _version, _input, _function in (
    ("Abs", 10, R(2, 3), torch.abs), ("Acos", 10, U(4), torch.acos), ("Acosh", 10, P(4) + 1, torch.acosh),
    ("Asin", 10, U(4), torch.asin), ("Asinh", 10, R(4), torch.asinh), ("Atan", 10, R(4), torch.atan),
    ("Atanh", 10, U(4), torch.atanh), ("Ceil", 10, R(4), torch.ceil), ("Cos", 10, R(4), torch.cos),
    ("Cosh", 10, R(4), torch.cosh), ("Erf", 10, R(4), torch.erf), ("Exp", 10, R(4), torch.exp),
    ("Floor", 10, R(4), torch.floor), ("Identity", 10, R(4), lambda x: x), ("Log", 10, P(4), torch.log),
    ("Neg", 10, R(4), lambda x: -x), ("Reciprocal", 10, P(4), lambda x: 1 / x),
    ("Relu", 6, R(4), lambda x: torch.where(x > 0, x, 0 * x)), ("Round", 11, R(4), torch.round),
    ("Sigmoid", 10, R(4), lambda x: 1 / (1 + torch.exp(-x))), ("Sign", 10, R(4), torch.sign),
    ("Sin", 10, R(4), torch.sin), ("Sinh", 10, R(4), torch.sinh),
    ("Softplus", 10, R(4), lambda x: torch.log(1 + torch.exp(x))), ("Softsign", 10, R(4), lambda x: x / (1 + x.abs())),
    ("Sqrt", 10, P(4), torch.sqrt), ("Tan", 10, U(4), torch.tan), ("Tanh", 10, R(4), torch.tanh),
):  # fmt: skip
    onnx(_name, [_input], _function, version=_version)
onnx("IsNaN", [G([1.0, math.nan], torch.float32)], lambda x: torch.tensor([False, True]))
onnx("IsInf", [G([1.0, math.inf, -math.inf], torch.float32)], lambda x: torch.tensor([False, True, True]))
onnx(
    "IsInf", [G([1.0, math.inf, -math.inf], torch.float32)], lambda x: torch.tensor([False, False, True]), "negative",
    detect_positive=0,
)  # fmt: skip
onnx("Not", [G([True, False], torch.bool)], lambda x: torch.tensor([False, True]))
onnx(
    "Clip",
    [R(6)],
    lambda x: torch.where(x < -0.5, -0.5 + 0 * x, torch.where(x > 0.4, 0.4 + 0 * x, x)),
    min=-0.5,
    max=0.4,
)
onnx("Clip", [R(6)], lambda x: torch.where(x < -0.5, -0.5 + 0 * x, x), "one side", min=-0.5)
onnx(
    "Clip", [R(6), K(-0.5, torch.float32), K(0.4, torch.float32)],
    lambda x, a, b: torch.where(x < -0.5, -0.5 + 0 * x, torch.where(x > 0.4, 0.4 + 0 * x, x)), version=11,
)  # fmt: skip
onnx("Clip", [R(6)], lambda x: x, "no bounds", 11)
onnx("Elu", [R(4)], lambda x: torch.where(x > 0, x, 0.7 * (x.exp() - 1)), alpha=0.7)
onnx("HardSigmoid", [R(4) * 3], lambda x: (0.3 * x + 0.4).clamp(0, 1), alpha=0.3, beta=0.4)
onnx("LeakyRelu", [R(4)], lambda x: torch.where(x > 0, x, 0.01 * x))
onnx("Selu", [R(4)], lambda x: F.selu(x))
onnx("Selu", [R(4)], lambda x: 2 * torch.where(x > 0, x, 0.5 * (x.exp() - 1)), "own", alpha=0.5, gamma=2)
onnx(
    "Shrink",
    [R(6)],
    lambda x: torch.where(x < -0.4, x + 0.1, torch.where(x > 0.4, x - 0.1, 0 * x)),
    lambd=0.4,
    bias=0.1,
)
onnx("ThresholdedRelu", [R(6)], lambda x: torch.where(x > 0.3, x, 0 * x), alpha=0.3)
onnx("PRelu", [R(2, 3), R(3)], lambda x, s: torch.where(x > 0, x, s * x))
onnx("PRelu", [R(2, 3, 2), R(3)], lambda x, s: torch.where(x > 0, x, s[:, None] * x), "channels", 6)
for _version in (6, 8, 11):
    onnx("Softmax", [R(2, 3, 4)], lambda x: torch.softmax(x.reshape(2, 12), 1).reshape(2, 3, 4), "flat", _version)
    onnx("LogSoftmax", [R(2, 3, 4)], lambda x: torch.log_softmax(x, 2), "last", _version, axis=2)
onnx("LogSoftmax", [R(2, 3)], lambda x: torch.log_softmax(x.flatten(), 0).reshape(2, 3), "all", axis=0)
onnx("Softmax", [R(2, 3, 4)], lambda x: torch.softmax(x.reshape(2, 12), 1).reshape(2, 3, 4), "negative", 11, axis=-2)

_A, _B = R(2, 3), P(3)
for _name, _function in (
    ("Add", torch.add), ("Sub", torch.sub), ("Mul", torch.mul), ("Div", torch.div),
    ("Pow", lambda a, b: a.sign() * 0 + a**b),
):  # fmt: skip
    _first = P(2, 3) if _name == "Pow" else _A
    onnx(_name, [_first, _B], _function)
    onnx(_name, [_first, P(2)], lambda a, b, f=_function: f(a, b[:, None]), "aligned", 6, broadcast=1, axis=0)
    onnx(_name, [_first, P(2, 3, seed=2)], _function, "equal", 6)
onnx("Div", [G([7, -7]), G([2, 2])], lambda a, b: ints(3, -3), "integers")
for _name, _function in (("Equal", torch.eq), ("Greater", torch.gt), ("Less", torch.lt)):
    onnx(_name, [G([[1, 2], [3, 4]]), G([2, 4])], _function)
    onnx(
        _name, [G([[1, 2], [3, 4]]), G([2, 3])], lambda a, b, f=_function: f(a, b[:, None]), "6", 6, broadcast=1, axis=0
    )
for _name, _function in (("And", torch.logical_and), ("Or", torch.logical_or)):
    _bools = [G([[True, False], [False, True]], torch.bool), G([True, False], torch.bool)]
    onnx(_name, _bools, _function)
    onnx(_name, _bools, _function, "6", 6, broadcast=1)
onnx("Mod", [G([-7, 7]), G([3, -3])], lambda a, b: ints(2, -2))
onnx("Mod", [R(4) * 5, P(4)], lambda a, b: a - b.detach() * (a / b).detach().trunc(), "fmod", fmod=1).numeric = False
_THREE = [R(2, 3), R(2, 3, seed=1), R(2, 3, seed=2)]
for _version in (6, 8):
    onnx("Max", _THREE, lambda *t: torch.stack(t).amax(0), f"{_version}", _version)
    onnx("Min", _THREE, lambda *t: torch.stack(t).amin(0), f"{_version}", _version)
    onnx("Mean", _THREE, lambda *t: torch.stack(t).mean(0), f"{_version}", _version)
    onnx("Sum", _THREE, lambda *t: torch.stack(t).sum(0), f"{_version}", _version)
onnx("Sum", [R(2, 3), R(3)], lambda a, b: a + b, "broadcast")
onnx("Max", [R(2, 3)], lambda a: a, "one")
onnx("MatMul", [R(2, 3, 4), R(4, 2)], lambda a, b: torch.einsum("bij,jk->bik", a, b))
onnx("Gemm", [R(2, 3), R(3, 4), R(4)], lambda a, b, c: a @ b + c)
onnx(
    "Gemm", [R(3, 2), R(4, 3), R(2, 1)], lambda a, b, c: 0.5 * a.t() @ b.t() + 2 * c, "all", alpha=0.5, beta=2,
    transA=1, transB=1,
)  # fmt: skip
onnx("Gemm", [R(2, 3), R(3, 4)], lambda a, b: a @ b, "no c", 11)
onnx("Gemm", [R(2, 3), R(3, 4), R(4)], lambda a, b, c: a @ b + c, "6", 6, broadcast=1)

for _name, _function in (
    ("ReduceL1", lambda x, d, k: x.abs().sum(d, k)), ("ReduceL2", lambda x, d, k: (x * x).sum(d, k).sqrt()),
    ("ReduceLogSum", lambda x, d, k: x.sum(d, k).log()), ("ReduceLogSumExp", lambda x, d, k: x.exp().sum(d, k).log()),
    ("ReduceMax", lambda x, d, k: x.amax(d, k)), ("ReduceMean", lambda x, d, k: x.mean(d, k)),
    ("ReduceMin", lambda x, d, k: x.amin(d, k)), ("ReduceProd", lambda x, d, k: x.log().sum(d, k).exp()),
    ("ReduceSum", lambda x, d, k: x.sum(d, k)), ("ReduceSumSquare", lambda x, d, k: (x**2).sum(d, k)),
):  # fmt: skip
    onnx(_name, [P(2, 3, 2)], lambda x, f=_function: f(x, (0, 1, 2), True))
    onnx(_name, [P(2, 3, 2)], lambda x, f=_function: f(x, (0, 2), False), "axes", axes=[0, -1], keepdims=0)
onnx("ArgMax", [R(3, 4)], lambda x: x.argmax(0, True).int()).numeric = False
onnx("ArgMin", [R(3, 4)], lambda x: x.argmin(1).int(), axis=1, keepdims=0).numeric = False
onnx("CumSum", [R(3, 4), K(1)], lambda x, _: torch.stack([x[:, : n + 1].sum(1) for n in range(4)], 1), version=11)
onnx(
    "CumSum", [R(4), K([0])], lambda x, _: torch.stack([x[n + 1 :].sum() for n in range(4)]), "reverse", 11,
    exclusive=1, reverse=1,
)  # fmt: skip

# -- shapes ------------------------------------------------------------------------------------------------------------

onnx("Cast", [R(4) * 3], lambda x: x.detach().trunc().int(), "integers", to=6).numeric = False
onnx("Cast", [G([0, 2])], lambda x: torch.tensor([False, True]), "bool", to=9)
onnx("Cast", [G([0, 2])], lambda x: torch.tensor([0.0, 2.0]), "float", 6, to=1)
onnx("Cast", [G([0, 2])], lambda x: torch.tensor([0.0, 2.0]).half(), "half", to=10)
onnx("Constant", [], lambda: torch.tensor([1.0, 2.0]), value=[1.0, 2.0])
onnx("ConstantOfShape", [K([2, 3])], lambda s: torch.zeros(2, 3))
onnx("ConstantOfShape", [K([2])], lambda s: ints(7, 7), "value", value=[7])
onnx("Shape", [R(2, 3)], lambda x: ints(2, 3)).numeric = False
onnx("Size", [R(2, 3)], lambda x: torch.tensor(6, dtype=torch.int32)).numeric = False
onnx("Concat", [R(2, 3), R(2, 1)], lambda a, b: torch.cat([a, b], 1), axis=1)
onnx("Concat", [R(2, 3), R(2, 1)], lambda a, b: torch.cat([a, b], 1), "negative", 11, axis=-1)
onnx("DepthToSpace", [R(1, 4, 1, 2)], lambda x: F.pixel_shuffle(x, 2), blocksize=2)
onnx("DepthToSpace", [R(1, 8, 1, 2)], lambda x: F.pixel_shuffle(x, 2), "CRD", 11, blocksize=2, mode="CRD")


def _depths(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:, :, i::2, j::2] for i, j in itertools.product(range(2), range(2))], 1)


onnx("SpaceToDepth", [R(2, 3, 4, 2)], _depths, blocksize=2)
onnx("Expand", [R(3, 1), K([2, 1, 4])], lambda x, _: torch.stack([torch.cat([x] * 4, 1)] * 2))
onnx("Flatten", [R(2, 3, 4)], lambda x: x.reshape(6, 4), axis=2)
onnx("Flatten", [R(2, 3, 4)], lambda x: x.reshape(1, 24), "0", axis=0)
onnx("Flatten", [R(2, 3, 4)], lambda x: x.reshape(6, 4), "negative", 11, axis=-1)
onnx("Reshape", [R(2, 3, 4), K([0, -1])], lambda x, _: x.reshape(2, 12))
onnx("Slice", [R(4, 5)], lambda x: x[1:3, -3:], "6", 6, starts=[1, -3], ends=[3, 100])
onnx("Slice", [R(4, 5)], lambda x: x[:, 1:-1], "axes", 6, starts=[1], ends=[-1], axes=[1])
onnx("Slice", [R(4, 5), K([1, -3]), K([3, 100])], lambda x, *_: x[1:3, -3:])
onnx("Slice", [R(4, 5), K([4]), K([0]), K([1]), K([-2])], lambda x, *_: x.flip(1)[:, 0:4:2], "backwards")
onnx("Slice", [R(4), K([3]), K([-100]), K([0]), K([-1])], lambda x, *_: x.flip(0), "all backwards", 11)
onnx("Split", [R(4, 6)], lambda x: [x[:, :2], x[:, 2:4], x[:, 4:]], axis=1)
onnx("Split", [R(4, 6)], lambda x: [x[:1], x[1:]], "parts", split=[1, 3])
onnx("Squeeze", [R(1, 3, 1)], lambda x: x.reshape(3))
onnx("Squeeze", [R(1, 3, 1)], lambda x: x.reshape(1, 3), "axes", axes=[2])
onnx("Unsqueeze", [R(2, 3)], lambda x: x.reshape(1, 2, 3, 1), axes=[0, 3])
onnx("Tile", [R(2, 3), K([2, 1])], lambda x, _: torch.cat([x, x]))
onnx("Transpose", [R(2, 3, 4)], lambda x: torch.einsum("ijk->kji", x))
onnx("Transpose", [R(2, 3, 4)], lambda x: torch.einsum("ijk->jki", x), "perm", perm=[1, 2, 0])
onnx("Pad", [R(2, 3)], lambda x: F.pad(x, (0, 2, 1, 0), value=1.5), pads=[1, 0, 0, 2], value=1.5)
onnx("Pad", [R(2, 3)], lambda x: x[:, 1:], "crop", pads=[0, -1, 0, 0])
onnx(
    "Pad",
    [R(2, 4)],
    lambda x: torch.cat([x[:, 2:3], x[:, 1:2], x, x[:, 2:3]], 1),
    "reflect",
    mode="reflect",
    pads=[0, 2, 0, 1],
)
onnx("Pad", [R(2, 3)], lambda x: torch.cat([x[:1], x[:1], x]), "edge", mode="edge", pads=[2, 0, 0, 0])
onnx("Pad", [R(2, 3), K([1, 0, 0, 2])], lambda x, _: F.pad(x, (0, 2, 1, 0)), version=11)
onnx(
    "Pad", [R(2, 3), K([1, 0, 0, 2]), K(1.5, torch.float32)], lambda x, *_: F.pad(x, (0, 2, 1, 0), value=1.5), "value",
    11,
)  # fmt: skip
onnx("Gather", [R(4, 3), G([[0, 2], [1, 1]])], lambda x, i: torch.stack([x[:, [0, 2]], x[:, [1, 1]]], 1), axis=1)
onnx("Gather", [R(4, 3), G([-1, 0])], lambda x, i: torch.stack([x[3], x[0]]), "negative", 11)


def _written(x: torch.Tensor, i: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for r, c in itertools.product(range(i.shape[0]), range(i.shape[1])):
        y[r, int(i[r, c])] = u[r, c]
    return y


onnx("Scatter", [R(2, 4), G([[1, 3], [0, 2]]), R(2, 2)], _written, axis=1)
onnx("ScatterElements", [R(2, 4), G([[1, -1], [0, 2]]), R(2, 2)], _written, version=11, axis=1)
onnx(
    "OneHot", [G([1, -1, 5]), K(3), R(2)],
    lambda i, d, v: torch.stack([torch.stack([v[int(b)] for b in row]) for row in ([0, 1, 0], [0, 0, 1], [0, 0, 0])]),
)  # fmt: skip
onnx(
    "OneHot", [G([[1, 0]]), K([2]), G([0.0, 1.0], torch.float32)],
    lambda i, d, v: torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), "axis", 11, axis=0,
).meaning = lambda i, d, v: torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]])  # fmt: skip
onnx("TopK", [R(2, 5)], lambda x: [x.sort(1, True)[0][:, :2], x.sort(1, True)[1][:, :2].int()], "6", 6, k=2)
onnx("TopK", [R(5, 2), K([3])], lambda x, _: [x.sort(0, True)[0][:3], x.sort(0, True)[1][:3].int()], axis=0)
onnx(
    "TopK", [R(2, 5), K([2])], lambda x, _: [x.sort(1)[0][:, :2], x.sort(1)[1][:, :2].int()], "smallest", 11, largest=0
)
onnx("Where", [G([[True], [False]], torch.bool), R(2, 3), R(3)], lambda c, a, b: torch.stack([a[0], b]))

# -- networks ----------------------------------------------------------------------------------------------------------

onnx("Conv", [R(1, 2, 6), R(3, 2, 3), R(3)], lambda x, w, b: F.conv1d(x, w, b, 2, 1), pads=[1, 1], strides=[2])
onnx(
    "Conv", [R(1, 4, 5, 6), R(2, 2, 2, 3)], lambda x, w: F.conv2d(F.pad(x, (1, 0, 0, 2)), w, None, 1, 0, (1, 2), 2),
    "pads", pads=[0, 1, 2, 0], dilations=[1, 2], group=2, kernel_shape=[2, 3],
)  # fmt: skip
onnx("Conv", [R(1, 1, 5), R(1, 1, 4)], lambda x, w: F.conv1d(F.pad(x, (1, 2)), w), "upper", auto_pad="SAME_UPPER")
onnx(
    "Conv",
    [R(1, 1, 6), R(1, 1, 3)],
    lambda x, w: F.conv1d(F.pad(x, (1, 0)), w, None, 2),
    "lower",
    auto_pad="SAME_LOWER",
    strides=[2],
)
onnx("Conv", [R(1, 1, 5), R(1, 1, 4)], lambda x, w: F.conv1d(x, w), "valid", auto_pad="VALID")
onnx("Conv", [R(1, 2, 3, 3, 3), R(2, 2, 2, 2, 2)], lambda x, w: F.conv3d(x, w), "3d")
onnx(
    "ConvTranspose", [R(1, 2, 3, 4), R(2, 2, 3, 3), R(4)],
    lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 1), 0, (1, 0), 2)[:, :, 1:-1, :-1],
    strides=[2, 1], output_padding=[1, 0], group=2, pads=[1, 0, 1, 1],
)  # fmt: skip
onnx(
    "ConvTranspose",
    [R(1, 2, 3), R(2, 3, 3)],
    lambda x, w: F.conv_transpose1d(x, w, None, 2)[:, :, 0:-1],
    "upper",
    auto_pad="SAME_UPPER",
    strides=[2],
).meaning = lambda x, w: F.conv_transpose1d(x, w, None, 2)[:, :, 1:]
onnx(
    "ConvTranspose",
    [R(1, 2, 3), R(2, 3, 3)],
    lambda x, w: F.conv_transpose1d(x, w, None, 2)[:, :, :6],
    "shape",
    output_shape=[6],
    strides=[2],
)
onnx(
    "ConvTranspose",
    [R(1, 2, 3), R(2, 3, 3), R(3)],
    lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 0, 1),
    "added",
    output_padding=[1],
    strides=[2],
)


def _pooled(
    x: torch.Tensor, kernel: int, stride: int, before: int, after: int, what: str, ceil: bool = False,
    dilation: int = 1,
) -> torch.Tensor:  # fmt: skip
    """Over the last of three axes, window by window; ``what`` is max, mean, or count: a mean with the padding."""
    size, reach = x.shape[2], (kernel - 1) * dilation + 1
    free = size + before + after - reach
    columns = []
    for w in range((-(-free // stride) if ceil else free // stride) + 1):
        places = [w * stride - before + k * dilation for k in range(kernel)]
        values = torch.stack([x[:, :, p] for p in places if 0 <= p < size], 2)
        padded = sum(-before <= p < size + after for p in places)
        columns.append(
            values.amax(2) if what == "max" else values.sum(2) / (padded if what == "count" else values.shape[2])
        )
    return torch.stack(columns, 2)


for _what, _name in (("max", "MaxPool"), ("mean", "AveragePool")):
    onnx(_name, [R(1, 2, 7)], lambda x, w=_what: _pooled(x, 3, 2, 1, 1, w), kernel_shape=[3], strides=[2], pads=[1, 1])
    onnx(
        _name,
        [R(1, 2, 7)],
        lambda x, w=_what: _pooled(x, 3, 2, 0, 1, w),
        "one end",
        6,
        kernel_shape=[3],
        strides=[2],
        pads=[0, 1],
    )
    onnx(
        _name,
        [R(1, 2, 8)],
        lambda x, w=_what: _pooled(x, 3, 2, 0, 0, w, True),
        "ceil",
        kernel_shape=[3],
        strides=[2],
        ceil_mode=1,
    )
    onnx(
        _name,
        [R(1, 2, 8)],
        lambda x, w=_what: _pooled(x, 3, 2, 0, 1, w),
        "upper",
        8,
        kernel_shape=[3],
        strides=[2],
        auto_pad="SAME_UPPER",
    )
    onnx(
        _name,
        [R(1, 2, 8)],
        lambda x, w=_what: _pooled(x, 3, 2, 1, 0, w),
        "lower",
        8,
        kernel_shape=[3],
        strides=[2],
        auto_pad="SAME_LOWER",
    )
onnx(
    "AveragePool",
    [R(1, 2, 8)],
    lambda x: _pooled(x, 3, 2, 1, 2, "count", True),
    "counted",
    kernel_shape=[3],
    strides=[2],
    pads=[1, 2],
    count_include_pad=1,
    ceil_mode=1,
)
onnx(
    "AveragePool",
    [R(1, 2, 7)],
    lambda x: _pooled(x, 3, 2, 1, 1, "count"),
    "counted 7",
    7,
    kernel_shape=[3],
    strides=[2],
    pads=[1, 1],
    count_include_pad=1,
)
onnx(
    "MaxPool",
    [R(1, 2, 8)],
    lambda x: _pooled(x, 3, 1, 0, 0, "max", False, 2),
    "dilated",
    kernel_shape=[3],
    dilations=[2],
)
onnx("MaxPool", [R(1, 2, 4, 6)], lambda x: F.max_pool2d(x, (2, 3), (1, 2)), "2d", kernel_shape=[2, 3], strides=[1, 2])
onnx("GlobalAveragePool", [R(2, 3, 2, 4)], lambda x: x.sum((2, 3), True) / 8)
onnx("GlobalMaxPool", [R(2, 3, 2, 4)], lambda x: x.amax((2, 3), True))
onnx(
    "InstanceNormalization", [R(2, 3, 4), R(3), R(3, seed=1)],
    lambda x, s, b: (x - x.mean(2, True)) / (x.var(2, correction=0, keepdim=True) + 1e-5).sqrt() * s[:, None]
    + b[:, None],
)  # fmt: skip


def _lrn(x: torch.Tensor) -> torch.Tensor:
    rows = []
    for c in range(x.shape[1]):
        total = (x[:, max(0, c - 1) : c + 3] ** 2).sum(1)  # 4 channels: one before, two after
        rows.append(x[:, c] / (2 + 0.1 / 4 * total) ** 0.5)
    return torch.stack(rows, 1)


onnx("LRN", [R(2, 5, 2)], _lrn, size=4, alpha=0.1, beta=0.5, bias=2.0)
for _version in (6, 10):
    onnx("Dropout", [R(3, 4)], lambda x: [x, torch.ones(3, 4, dtype=torch.bool)], "none", _version, ratio=0.0)


def _onnx_lstm(x: Any, w: Any, r: Any, b: Any, lengths: Any, h0: Any, c0: Any, f: Any, g: Any, h_: Any) -> list[Any]:
    hidden, rows, lasts = r.shape[2], [], []
    for row in range(x.shape[1]):
        h = x.new_zeros(hidden) if h0 is None else h0[0, row]
        c = x.new_zeros(hidden) if c0 is None else c0[0, row]
        outputs = []
        for t in range(x.shape[0]):
            if lengths is not None and t >= int(lengths[row]):
                outputs.append(x.new_zeros(hidden))
                continue
            gates = w[0] @ x[t, row] + r[0] @ h
            if b is not None:
                gates = gates + b[0, : 4 * hidden] + b[0, 4 * hidden :]
            i, o, forget, cell = gates.split(hidden)
            c = f(forget) * c + f(i) * g(cell)
            h = f(o) * h_(c)
            outputs.append(h)
        rows.append(torch.stack(outputs))
        lasts.append((h, c))
    last = [torch.stack([pair[n] for pair in lasts]).unsqueeze(0) for n in (0, 1)]
    return [torch.stack(rows, 1).unsqueeze(1), *last]


_S, _T = torch.sigmoid, torch.tanh
_LSTM = [R(3, 2, 2), R(1, 12, 2) / 2, R(1, 12, 3) / 2]
for _version in (6, 10):
    onnx(
        "LSTM",
        _LSTM,
        lambda x, w, r: _onnx_lstm(x, w, r, None, None, None, None, _S, _T, _T),
        "",
        _version,
        hidden_size=3,
    ).numeric = False
onnx(
    "LSTM", [*_LSTM, R(1, 24), G([3, 2]), R(1, 2, 3), R(1, 2, 3, seed=1)],
    lambda *t: _onnx_lstm(*t, _S, _T, _T), "all",
).numeric = False  # fmt: skip
onnx(
    "LSTM", [*_LSTM, R(1, 24)], lambda x, w, r, b: _onnx_lstm(x, w, r, b, None, None, None, _S, torch.relu, _T),
    "activations", activations=["Sigmoid", "Relu", "Tanh"],
).numeric = False  # fmt: skip


def _onnx_rnn(x: Any, w: Any, r: Any, b: Any = None, f: Callable[..., Any] = torch.tanh) -> list[torch.Tensor]:
    h, rows = x.new_zeros(x.shape[1], r.shape[2]), []
    for t in range(x.shape[0]):
        h = f(x[t] @ w[0].t() + h @ r[0].t() + (0 if b is None else b[0, :3] + b[0, 3:]))
        rows.append(h)
    return [torch.stack(rows).unsqueeze(1), h.unsqueeze(0)]


_RNN = [R(3, 2, 2), R(1, 3, 2), R(1, 3, 3)]
for _version in (6, 10):
    onnx("RNN", [*_RNN, R(1, 6)], _onnx_rnn, "", _version).numeric = False
onnx("RNN", _RNN, lambda x, w, r: _onnx_rnn(x, w, r, f=torch.relu), "relu", activations=["Relu"]).numeric = False


def _onnx_gru(x: Any, w: Any, r: Any, b: Any, linear: bool, backwards: bool = False) -> tuple[Any, Any]:
    """One direction: w [3H, I], r [3H, H], b [6H]."""
    hidden = r.shape[1]
    h, rows = x.new_zeros(x.shape[1], hidden), []
    wb, rb = b[: 3 * hidden].split(hidden), b[3 * hidden :].split(hidden)
    ws, rs = w.split(hidden), r.split(hidden)
    for t in reversed(range(x.shape[0])) if backwards else range(x.shape[0]):
        z = torch.sigmoid(x[t] @ ws[0].t() + h @ rs[0].t() + wb[0] + rb[0])
        q = torch.sigmoid(x[t] @ ws[1].t() + h @ rs[1].t() + wb[1] + rb[1])
        inner = q * (h @ rs[2].t() + rb[2]) if linear else (q * h) @ rs[2].t() + rb[2]
        n = torch.tanh(x[t] @ ws[2].t() + wb[2] + inner)
        h = (1 - z) * n + z * h
        rows.append(h)
    return torch.stack(rows[::-1] if backwards else rows), h


def _gru(x: Any, w: Any, r: Any, b: Any, linear: bool = False) -> list[torch.Tensor]:
    found = [_onnx_gru(x, w[d], r[d], b[d], linear, backwards=d == 1) for d in range(w.shape[0])]
    return [torch.stack([y for y, _ in found], 1), torch.stack([h for _, h in found])]


_GRU = [R(3, 2, 2), R(1, 9, 2), R(1, 9, 3), R(1, 18)]
for _version in (6, 10):
    onnx("GRU", _GRU, _gru, "", _version, hidden_size=3).numeric = False
onnx("GRU", _GRU, lambda *t: _gru(*t, linear=True), "linear", linear_before_reset=1).numeric = False
onnx("GRU", [R(3, 2, 2), R(2, 9, 2), R(2, 9, 3), R(2, 18)], _gru, "both", direction="bidirectional").numeric = False

# -- images ------------------------------------------------------------------------------------------------------------


def _sampled(x: torch.Tensor, new: int, place: Callable[[int], float]) -> torch.Tensor:
    """The last axis at places between elements, linearly."""
    columns = []
    for i in range(new):
        p = min(max(place(i), 0.0), x.shape[-1] - 1.0)
        low = min(int(p), x.shape[-1] - 2)
        columns.append(x[..., low] * (1 - (p - low)) + x[..., low + 1] * (p - low))
    return torch.stack(columns, -1)


_SCALES = K([1.0, 1.0, 2.0], torch.float32)
_NO_ROI = K([], torch.float32)
onnx("Upsample", [R(1, 2, 3)], lambda x: x.repeat_interleave(2, 2), "", 8, scales=[1.0, 1.0, 2.0])
onnx("Upsample", [R(1, 2, 3), _SCALES], lambda x, _: _sampled(x, 6, lambda i: i / 2), "linear", 9, mode="linear")
onnx("Resize", [R(1, 2, 3), _SCALES], lambda x, _: x.repeat_interleave(2, 2))
onnx("Resize", [R(1, 2, 5), K([1.0, 1.0, 0.6], torch.float32)], lambda x, _: x[:, :, [0, 1, 3]], "down")
onnx(
    "Resize", [R(1, 2, 3), _NO_ROI, _SCALES], lambda x, *_: _sampled(x, 6, lambda i: (i + 0.5) / 2 - 0.5), "linear",
    11, mode="linear",
)  # fmt: skip
onnx(
    "Resize", [R(1, 2, 3), _NO_ROI, _NO_ROI, K([1, 2, 7])], lambda x, *_: _sampled(x, 7, lambda i: i / 3),
    "corners", 11, mode="linear", coordinate_transformation_mode="align_corners",
)  # fmt: skip
onnx(
    "Resize", [R(1, 2, 4, 4), _NO_ROI, K([1.0, 1.0, 2.0, 2.0], torch.float32)],
    lambda x, *_: F.interpolate(x, scale_factor=2, mode="bicubic"), "cubic", 11, mode="cubic",
)  # fmt: skip
onnx("Resize", [R(1, 2, 4), _NO_ROI, _NO_ROI, K([1, 2, 6])], lambda x, *_: x[:, :, [0, 0, 1, 2, 2, 3]], "nearest", 11)


def _regions(x: Any, rois: Any, batch: Any, ratio: int, most: bool = False) -> torch.Tensor:
    """Bins of 2 by 2, samples in loops, scale 0.5."""

    def at(image: Any, y: float, z: float) -> Any:
        y, z = max(y, 0.0), max(z, 0.0)
        y0, z0 = min(int(y), image.shape[1] - 1), min(int(z), image.shape[2] - 1)
        y1, z1 = min(y0 + 1, image.shape[1] - 1), min(z0 + 1, image.shape[2] - 1)
        b, a = min(y, image.shape[1] - 1) - y0, min(z, image.shape[2] - 1) - z0
        top = image[:, y0, z0] * (1 - a) + image[:, y0, z1] * a
        return top * (1 - b) + (image[:, y1, z0] * (1 - a) + image[:, y1, z1] * a) * b

    found = []
    for roi, number in zip(rois, batch, strict=True):
        x1, y1, x2, y2 = (float(v) * 0.5 for v in roi)
        height, width = max(y2 - y1, 1.0) / 2, max(x2 - x1, 1.0) / 2
        rows, columns = (ratio, ratio) if ratio else (math.ceil(height), math.ceil(width))
        bins = []
        for i, j in itertools.product(range(2), range(2)):
            samples = [
                at(x[int(number)], y1 + (i + (p + 0.5) / rows) * height, x1 + (j + (q + 0.5) / columns) * width)
                for p, q in itertools.product(range(rows), range(columns))
            ]
            stacked = torch.stack(samples)
            bins.append(stacked.amax(0) if most else stacked.mean(0))
        found.append(torch.stack(bins, 1).reshape(-1, 2, 2))
    return torch.stack(found)


_ROIS = [R(2, 3, 6, 8), G([[1.0, 2.0, 9.0, 11.0], [0.0, 0.0, 15.0, 10.0]], torch.float32), G([1, 0])]
_BINS: dict[str, Any] = {"output_height": 2, "output_width": 2, "spatial_scale": 0.5}
onnx("RoiAlign", _ROIS, lambda *t: _regions(*t, 2), sampling_ratio=2, **_BINS)
onnx("RoiAlign", _ROIS, lambda *t: _regions(*t, 0), "adaptive", **_BINS)
onnx("RoiAlign", _ROIS, lambda *t: _regions(*t, 2, most=True), "most", sampling_ratio=2, mode="max", **_BINS)

__all__ = ["CASES"]
