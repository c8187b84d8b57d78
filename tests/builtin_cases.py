"""Built-in operators beside what they mean: inputs, attributes, and the same in plain PyTorch or in loops.

Each entry is one call. Together they are the operators that ``poptorch.custom_op`` reaches without registration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F


class Given:
    """An input that the model gets as an argument: nothing is differentiated with respect to it."""

    def __init__(self, values: Any, dtype: torch.dtype = torch.int32) -> None:
        self.tensor = torch.as_tensor(values).to(dtype)


class Fixed:
    """An input that ``forward`` makes: a constant of the program."""

    def __init__(self, values: Any, dtype: torch.dtype = torch.int32) -> None:
        self.values, self.dtype = values, dtype

    @property
    def tensor(self) -> torch.Tensor:
        return torch.tensor(self.values, dtype=self.dtype)


@dataclass
class Case:
    """One call of an operator, and its meaning."""

    domain: str
    name: str
    version: int
    inputs: Sequence[Any]
    """Tensors of float64 are weights of the model, in float32."""

    meaning: Callable[..., Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    training: bool = True
    numeric: bool = False
    """Whether its own gradient is compared with differences, too."""

    @property
    def id(self) -> str:
        note = f"-{self.note}" if self.note else ""
        return f"{self.domain.removeprefix('ai.')}-{self.name}-{self.version}{note}"

    def expected(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        results = self.meaning(*tensors)
        return list(results) if isinstance(results, (list, tuple)) else [results]


CASES: list[Case] = []


def graphcore(name: str, inputs: Sequence[Any], meaning: Callable[..., Any], note: str = "", **attributes: Any) -> Case:
    return _add(Case("ai.graphcore", name, 1, inputs, meaning, attributes, note))


def onnx(
    name: str, inputs: Sequence[Any], meaning: Callable[..., Any], note: str = "", version: int = 10, **attributes: Any
) -> Case:
    return _add(Case("ai.onnx", name, version, inputs, meaning, attributes, note))


def _add(case: Case) -> Case:
    CASES.append(case)
    case.numeric = any(isinstance(i, torch.Tensor) and i.is_floating_point() for i in case.inputs)
    return case


def R(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal random numbers, none of which is near a border between two integers."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.where((x - x.round()).abs() < 0.05, x + 0.1, x)


def P(*shape: int, seed: int = 0) -> torch.Tensor:
    """Positive ones."""
    return R(*shape, seed=seed).abs() + 0.3


def U(*shape: int, seed: int = 0) -> torch.Tensor:
    """Between -0.9 and 0.9."""
    return torch.tanh(R(*shape, seed=seed)) * 0.9


def G(values: Any, dtype: torch.dtype = torch.int32) -> Given:
    return Given(values, dtype)


def K(values: Any, dtype: torch.dtype = torch.int32) -> Fixed:
    return Fixed(values, dtype)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


# -- losses ------------------------------------------------------------------------------------------------------------


def reduced(values: torch.Tensor, reduction: str, count: int | None = None) -> torch.Tensor:
    if reduction == "None":
        return values
    return values.sum() / ((count or values.numel()) if reduction == "Mean" else 1)


for _reduction in ("Sum", "Mean", "None"):
    graphcore(
        "L1", [R(2, 3)], lambda x, r=_reduction: reduced(0.3 * x.abs(), r), _reduction,
        **{"lambda": 0.3, "reduction": _reduction},
    )  # fmt: skip
    graphcore(
        "Nll", [torch.softmax(R(3, 4), -1), G([1, 0, 3])],
        lambda p, t, r=_reduction: reduced(-p.log()[torch.arange(3), t.long()], r), _reduction, reduction=_reduction,
    )  # fmt: skip
    graphcore("IdentityLoss", [R(2, 3)], lambda x, r=_reduction: reduced(x, r), _reduction, reduction=_reduction)
graphcore(
    "Nll", [torch.softmax(R(2, 2, 4), -1), G([[1, 2], [2, 3]])],
    lambda p, t: (-p[0, 0, 1].log() - p[1, 1, 3].log()) / 2, "ignored", reduction="Mean", ignoreIndex=2,
)  # fmt: skip
graphcore(
    "Nll", [R(3, 4), G([1, 4, -1])], lambda p, t: torch.stack([-p[0, 1], p[0, 0] * 0, p[0, 0] * 0]), "log",
    reduction="None", inputIsLogProbability=1,
)  # fmt: skip


def _ctc(x: torch.Tensor, *others: torch.Tensor, reduction: str) -> torch.Tensor:
    return F.ctc_loss(torch.log_softmax(x, -1), *(o.long() for o in others), blank=1, reduction=reduction)


def _ctc_slope(lp: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
    with torch.enable_grad():
        values = lp.detach().requires_grad_()
        loss = F.ctc_loss(values, *(o.long() for o in others), blank=1, reduction="none")
        (slope,) = torch.autograd.grad(loss.sum(), values)
    loss = F.ctc_loss(lp, *(o.long() for o in others), blank=1, reduction="sum")
    return [loss, slope]


_CTC = [torch.log_softmax(R(5, 2, 4), -1), G([[2, 3], [3, 0]]), G([5, 4]), G([2, 1])]
graphcore("Ctc", _CTC, _ctc_slope, "gradient", reduction="Sum", blank=1, outDataType="UNDIFINED").numeric = False
graphcore(
    "Ctc", _CTC, lambda lp, *o: F.ctc_loss(lp, *(i.long() for i in o), blank=1), "mean", reduction="Mean", blank=1,
    outDataType=1,
).numeric = False  # fmt: skip
graphcore(
    "CtcBeamSearchDecoder",
    [torch.tensor([[[0.1, 0.6, 0.3]], [[0.5, 0.3, 0.2]], [[0.1, 0.7, 0.2]]]).double().log(), G([3])],
    lambda p, n: [(b := _best_path(p))[0], ints(len(b[1])).reshape(1, 1), ints(*b[1], 0, 0, 0)[:3].reshape(1, 1, 3)],
    beam_width=10,
)


def _best_path(p: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    totals: dict[tuple[int, ...], float] = {}
    steps, _, classes = p.shape
    for path in itertools.product(range(classes), repeat=steps):
        label = tuple(c for c, _ in itertools.groupby(path) if c)
        totals[label] = totals.get(label, 0.0) + math.exp(sum(float(p[t, 0, c]) for t, c in enumerate(path)))
    best = max(totals, key=lambda label: totals[label])
    return torch.tensor([[math.log(totals[best])]], dtype=p.dtype), list(best)


# -- element by element ------------------------------------------------------------------------------------------------

graphcore("Atan2", [R(3, 4), R(4, seed=1)], torch.atan2)
for _op, _function in (
    ("Mul", lambda a, b: a * b), ("Div", lambda a, b: a / b), ("Add", lambda a, b: a + b), ("Sub", lambda a, b: a - b),
    ("Pow", lambda a, b: a**b),
):  # fmt: skip
    graphcore(
        "BinaryConstScalar", [P(3)], lambda x, f=_function: f(x, 1.5), f"{_op}1", value=1.5, op=_op, scalar_in_index=1
    )
    graphcore(
        "BinaryConstScalar", [P(3)], lambda x, f=_function: f(torch.tensor(1.5).double(), x), f"{_op}0", value=1.5,
        op=_op, scalar_in_index=0,
    )  # fmt: skip
graphcore("BinaryConstScalar", [G([7, -7])], lambda x: ints(3, -3), "integers", value=2, op="Div", scalar_in_index=1)
graphcore("BitwiseNot", [G([5, -3])], lambda x: ints(-6, 2))
graphcore("BitwiseAnd", [G([[6, 3]]), G([[5], [1]])], lambda a, b: torch.tensor([[4, 1], [0, 1]], dtype=torch.int32))
graphcore("BitwiseOr", [G([6, 3]), G([1, 8])], lambda a, b: ints(7, 11))
graphcore("BitwiseXor", [G([6, 3]), G([3, 3])], lambda a, b: ints(5, 0))
graphcore("BitwiseXnor", [G([6, 3]), G([3, 3])], lambda a, b: ints(~5, -1))
graphcore("Detach", [R(3)], lambda x: x.detach()).numeric = False
graphcore("Expm1", [R(3)], lambda x: x.exp() - 1)
graphcore("Log1p", [P(3)], lambda x: (1 + x).log())
graphcore("Fmod", [R(4) * 5, P(4)], lambda a, b: a - b.detach() * (a / b).detach().trunc()).numeric = False
graphcore("Remainder", [R(4) * 5, P(4)], lambda a, b: a - b * (a / b).detach().floor())
graphcore("Remainder", [G([-7, 7]), G([3, -3])], lambda a, b: ints(2, -2), "integers")
graphcore("Gelu", [R(3, 4)], lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
graphcore("GeluErf", [R(3, 4)], lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))))
graphcore(
    "IncrementMod", [R(5) * 4], lambda x: (s := x.detach() + 1.5) - 2 * (s / 2).trunc(), increment=1.5, modulus=2
).numeric = False
graphcore("NearbyInt", [torch.tensor([0.5, 1.5, -2.5, 1.2]).double()], lambda x: x.detach().round()).numeric = False
graphcore("Round", [torch.tensor([0.5, 1.5, -2.5, 1.2]).double()], lambda x: x.detach().round()).numeric = False
graphcore("Nop", [R(3)], lambda x: x).numeric = False
graphcore("AutoLossScaleProxy", [R(3)], lambda x: x).numeric = False
graphcore("PrintTensor", [R(3)], lambda x: x, title="shown", print_gradient=0).numeric = False
graphcore("Scale", [R(3)], lambda x: 2.5 * x, scale=2.5)
graphcore("Scale", [R(3)], lambda x: x, "default")
graphcore("ScaledAdd", [R(3), R(3, seed=1)], lambda a, b: 2 * a - 0.5 * b, scale0=2, scale1=-0.5)
graphcore("ScaledAdd", [R(3), R(3, seed=1), R(1)], lambda a, b, s: 2 * a + s * b, "one", scale0=2.0)
graphcore("ScaledAdd", [R(3), R(3, seed=1), R(1), R(1, seed=5)], lambda a, b, s, t: s * a + t * b, "two")
graphcore("ShapedDropout", [R(3, 4)], lambda x: x, "no ratio", shape=[4], ratio=0.0)
graphcore("Square", [R(3)], lambda x: x**2)
graphcore("Swish", [R(3)], lambda x: x * torch.sigmoid(x))

# -- parts of tensors --------------------------------------------------------------------------------------------------


def _blocks(x: torch.Tensor, b: int, crd: bool) -> torch.Tensor:
    n, c, h, w = x.shape
    inner = c // b**2
    y = x.new_zeros(n, inner, h * b, w * b)
    for channel, i, j in itertools.product(range(inner), range(b), range(b)):
        source = channel * b * b + i * b + j if crd else (i * b + j) * inner + channel
        y[:, channel, i::b, j::b] = x[:, source]
    return y


graphcore("DepthToSpace", [R(2, 8, 2, 3)], lambda x: _blocks(x, 2, False), blocksize=2)
graphcore("DepthToSpace", [R(2, 8, 2, 3)], lambda x: F.pixel_shuffle(x, 2), "CRD", blocksize=2, mode="CRD")
graphcore("Reshape", [R(2, 3, 4)], lambda x: x.reshape(2, 6, 2), shape=[0, -1, 2])
graphcore("Reverse", [R(2, 3)], lambda x: x.flip(1), dimensions=[1])
graphcore("Reverse", [R(2, 3)], lambda x: x, "none")
graphcore("Slice", [R(4, 5)], lambda x: x[1:3, -3:], starts=[1, -3], ends=[3, 100])
graphcore("Slice", [R(4, 5)], lambda x: x[:, 0:4:2], "axes", starts=[0], ends=[4], axes=[-1], steps=[2])
graphcore("Subsample", [R(5, 4)], lambda x: x[::2, ::3], strides=[2, 3])


def _window(t: torch.Tensor, part: torch.Tensor | float, add: bool = False) -> torch.Tensor:
    y = t.clone()
    y[1:3, :, 2:5] = (y[1:3, :, 2:5] if add else 0) + part
    return y


_WINDOW = {"axes": [0, 2], "sizes": [2, 3]}
_T, _PART = R(4, 2, 6), R(2, 2, 3, seed=1)
graphcore("DynamicSlice", [_T, G([1, 2])], lambda t, o: t[1:3, :, 2:5], **_WINDOW)
graphcore("DynamicSlice", [_T, G([1, 2]), _PART], lambda t, o, m: t[1:3, :, 2:5], "memory", noOverlap=1, **_WINDOW)
graphcore("DynamicUpdate", [_T, G([1, 2]), _PART], lambda t, o, p: _window(t, p), **_WINDOW)
graphcore("DynamicAdd", [_T, G([1, 2]), _PART], lambda t, o, p: _window(t, p, add=True), **_WINDOW)
graphcore("DynamicZero", [_T, G([1, 2])], lambda t, o: _window(t, 0.0), **_WINDOW)


def _sequences(s: torch.Tensor, d: torch.Tensor, zero: bool) -> torch.Tensor:
    """2 rows from 1 to 0, then 1 row from 0 to 4; after a length of 0 nothing more."""
    rest = torch.zeros_like(d) if zero else d
    return torch.cat([s[1:3], rest[2:4], s[0:1]])


for _zero in (0, 1):
    graphcore(
        "SequenceSlice", [R(4, 2), R(5, 2), G([2, 1, 0, 3]), G([1, 0, 0, 0]), G([0, 4, 0, 0])],
        lambda s, d, *_, z=_zero: _sequences(s, d, bool(z)), f"zero{_zero}", zeroUnused=_zero,
    )  # fmt: skip
graphcore("TensorRemap", [R(2, 3), R(2, 3)], lambda x, r: x, remap_type=1).numeric = False
graphcore("GroupedGather", [R(4, 3), G([[0, 3], [1, 1]])], lambda x, i: x[i.long()])
graphcore(
    "GroupedGather", [R(2, 4, 3), G([[0, 3, 9], [1, 1, -1]])],
    lambda x, i: torch.stack([x[0, 0], x[0, 3], 0 * x[0, 0], x[1, 1], x[1, 1], 0 * x[0, 0]]).reshape(2, 3, 3),
    "groups", axis=1, group_size=2,
)  # fmt: skip
graphcore(
    "GroupedGather", [R(2, 3, 4), G([[0, 3], [1, 1]])], lambda x, i: torch.stack([x[0][:, [0, 3]], x[1][:, [1, 1]]]),
    "last axis", axis=2, group_size=2,
)  # fmt: skip


def _scatter(src: Any, index: Any, initial: Any, size: int, f: Callable[..., Any], empty: float) -> torch.Tensor:
    """Along the last axis of two, in loops."""
    rows = []
    for r in range(src.shape[0]):
        slots = [None if initial is None else initial[r, s] for s in range(size)]
        for c in range(src.shape[1]):
            s = int(index[r, c] if index.dim() == 2 else index[c])
            slots[s] = src[r, c] if slots[s] is None else f(slots[s], src[r, c])
        rows.append(torch.stack([torch.tensor(empty, dtype=src.dtype) if s is None else s for s in slots]))
    return torch.stack(rows)


for _name, _f, _empty in (
    ("sum", lambda a, b: a + b, 0.0), ("max", torch.maximum, 0.0), ("min", torch.minimum, 0.0),
    ("mul", lambda a, b: a * b, 1.0), ("none", lambda a, b: b, 0.0),
):  # fmt: skip
    _index = [[0, 2, 1, 4], [4, 1, 3, 0]] if _name == "none" else [[0, 2, 0, 4], [4, 1, 1, 4]]
    graphcore(
        "ScatterReduce", [R(2, 4), G(_index)], lambda s, i, f=_f, e=_empty: _scatter(s, i, None, 5, f, e), _name,
        axis_size=5, reduction=_name.upper(),
    ).numeric = _name != "none"  # fmt: skip
    graphcore(
        "ScatterReduce", [R(2, 4), G(_index), R(2, 5, seed=3)],
        lambda s, i, v, f=_f, e=_empty: _scatter(s, i, v, 5, f, e), f"{_name} initial", axis_size=5, reduction=_name,
        axis=1,
    ).numeric = _name != "none"  # fmt: skip
graphcore(
    "ScatterReduce", [R(2, 4), G([0, 2, 0, 4])],
    lambda s, i: _scatter(s, i, None, 5, lambda a, b: a + b, 0.0), "vector", axis_size=5,
)  # fmt: skip
graphcore(
    "ScatterReduce", [R(2, 4), G([[0, 2, 0, 4], [4, 1, 1, 4]])],
    lambda s, i: _scatter(s, i, None, 5, lambda a, b: a + b, 0.0), "groups", axis_size=5, axis=1, group_size=2,
)  # fmt: skip
graphcore("Sort", [R(3, 4)], lambda x: [(s := x.sort(1))[0], s[1].int()])
graphcore("Sort", [R(3, 4)], lambda x: [(s := x.sort(0, True))[0], s[1].int()], "down", axis=0, descending=1, stable=1)


def _median(x: torch.Tensor) -> list[torch.Tensor]:
    rows = x.permute(1, 0, 2).flatten(1)
    values, places = rows.sort(1)
    at = (rows.shape[1] - 1) // 2
    return [values[:, at].reshape(1, -1, 1), places[:, at].reshape(1, -1, 1).int()]


graphcore("ReduceMedian", [R(3, 2, 4)], _median, axes=[0, 2])
graphcore("ReduceMedian", [R(6)], lambda x: [x.sort().values[2], x.sort().indices[2].int()], "all", keepdims=0)
graphcore(
    "Histogram", [torch.tensor([[-3.0, 0.0, 0.5], [1.0, -1.0, 7.0]]).double()], lambda x: ints(2, 2, 2),
    levels=[1.0, 0.0], absoluteOfInput=0,
).numeric = False  # fmt: skip
graphcore(
    "Histogram", [torch.tensor([-3.0, 0.5]).double()], lambda x: ints(1, 1), "absolute", levels=[1.0],
    absoluteOfInput=1,
).numeric = False  # fmt: skip
for _right in (0, 1):
    graphcore(
        "Bucketize", [G([0.0, 1.0, 1.5, 9.0], torch.float32), G([1.0, 2.0], torch.float32)],
        lambda x, b, r=_right: ints(0, r, 1, 2), f"right{_right}", right=_right,
    )  # fmt: skip

# -- networks ----------------------------------------------------------------------------------------------------------


def _group_norm(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    g = x.reshape(2, 2, -1)
    mean, var = g.mean(-1), g.var(-1, correction=0)
    y = ((g - mean[..., None]) / (var[..., None] + 0.01).sqrt()).reshape(x.shape)
    y = y * s[:, None, None] + b[:, None, None]
    return [y, mean.detach().flatten(), (var.detach() + 0.01).rsqrt().flatten()]


graphcore(
    "GroupNormalization", [R(2, 4, 3, 2), R(4), R(4, seed=2)], _group_norm, num_groups=2, epsilon=0.01
).numeric = False


def _batch_norm(x: Any, s: Any, b: Any, m: Any, v: Any, correction: int) -> list[torch.Tensor]:
    rows = x.transpose(0, 1).flatten(1)
    mean, var = rows.mean(1), rows.var(1, correction=0)
    shape = [1, -1] + [1] * (x.dim() - 2)
    y = (x - mean.reshape(shape)) / (var.reshape(shape) + 1e-5).sqrt() * s.reshape(shape) + b.reshape(shape)
    kept = 0.9 * m + 0.1 * mean, 0.9 * v + 0.1 * rows.var(1, correction=correction)
    return [y, *(t.detach() for t in (*kept, mean, var))]


def _batch_norm_fixed(x: Any, s: Any, b: Any, m: Any, v: Any) -> torch.Tensor:
    shape = [1, -1] + [1] * (x.dim() - 2)
    y = (x - m.reshape(shape)) / (v.reshape(shape) + 0.1).sqrt()
    return y * s.reshape(shape) + b.reshape(shape)


_NORM = [R(3, 2, 4), R(2), R(2, seed=1), G([0.1, 0.2], torch.float32), G([1.0, 2.0], torch.float32)]
graphcore("BatchNormalization", _NORM, _batch_norm_fixed, "fixed", epsilon=0.1).numeric = False
graphcore("BatchNormalization", _NORM, lambda *t: _batch_norm(*t, 1), "training").numeric = False
for _version in (6, 8, 10):
    onnx("BatchNormalization", _NORM, lambda *t: _batch_norm(*t, 0), "training", _version).numeric = False
    onnx("BatchNormalization", _NORM, _batch_norm_fixed, "fixed", _version, epsilon=0.1).numeric = False
onnx("BatchNormalization", _NORM, _batch_norm_fixed, "test", 6, epsilon=0.1, is_test=1).numeric = False


def _lstm(x: Any, w: Any, b: Any, state: Any, lengths: Any, full: bool) -> list[torch.Tensor]:
    """One sequence and one moment after the other; gates forget, input, candidate, output."""
    hidden = w.shape[2]
    outputs, last = [], []
    for row in range(x.shape[1]):
        h, c = (x.new_zeros(hidden), x.new_zeros(hidden)) if state is None else (state[0, row], state[1, row])
        rows = []
        for t in range(x.shape[0]):
            if lengths is not None and t >= int(lengths[row]):
                rows.append(x.new_zeros(hidden))
                continue
            f, i, g, o = (torch.cat([x[t, row], h]) @ w[n] + (0 if b is None else b[n]) for n in range(4))
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            rows.append(h)
        outputs.append(torch.stack(rows))
        last.append((h, c))
    y = torch.stack(outputs, 1) if full else torch.stack([h for h, _ in last])
    return [y, torch.stack([c for _, c in last])]


_X, _W = R(3, 2, 2), R(4, 5, 3) / 2
graphcore("LSTM", [_X, _W], lambda x, w: _lstm(x, w, None, None, None, True), "no bias").numeric = False
graphcore(
    "LSTM", [_X, _W, R(4, 3), R(2, 2, 3)], lambda x, w, b, s: _lstm(x, w, b, s, None, False), "state",
    output_full_sequence=0,
).numeric = False  # fmt: skip
graphcore("LSTM", [_X, _W, R(4, 3), R(2, 2, 3), G([3, 1])], lambda *t: _lstm(*t, True), "lengths").numeric = False


def _convolutions(a: Any, v: Any, b: Any, c: Any, w: Any, d: Any) -> list[torch.Tensor]:
    first = F.conv2d(F.pad(a, (1, 0, 0, 1)), v, b, (2, 1), 0, (1, 2))
    return [first, F.conv1d(c, w, d, 1, 1, 1, 2)]


graphcore(
    "MultiConv", [R(1, 2, 5, 6), R(3, 2, 2, 2), R(3), R(1, 4, 5), R(2, 2, 3), R(2)], _convolutions,
    numConvs=2, strides=[2, 1, 1], pads=[0, 1, 1, 0, 1, 1], dilations=[1, 2, 1], planType="parallel",
)  # fmt: skip
graphcore(
    "MultiConv", [R(1, 2, 3), R(3, 2, 2)], lambda x, w: F.pad(F.conv1d(_spread(x), w), (1, 2)), "dilated",
    inDilations=[2], outPads=[1, 2],
)  # fmt: skip


def _spread(x: torch.Tensor) -> torch.Tensor:
    y = x.new_zeros(*x.shape[:2], 2 * x.shape[2] - 1)
    y[:, :, ::2] = x
    return y


graphcore(
    "NormalizeImage", [R(2, 2, 3), R(3), R(3, seed=1)], lambda x, o, s: F.pad((x * 0.5 - o) * s, (0, 1)), scale=0.5
)


def _splines(degree: int) -> Callable[..., list[torch.Tensor]]:
    pieces: dict[int, list[Callable[[Any], Any]]] = {
        0: [lambda f: 1 + 0 * f],
        1: [lambda f: 1 - f, lambda f: f],
        2: [lambda f: f * f / 2 - f + 0.5, lambda f: -f * f + f + 0.5, lambda f: f * f / 2],
        3: [
            lambda f: (1 - f) ** 3 / 6, lambda f: (3 * f**3 - 6 * f**2 + 4) / 6,
            lambda f: (-3 * f**3 + 3 * f**2 + 3 * f + 1) / 6, lambda f: f**3 / 6,
        ],
    }  # fmt: skip

    def basis(pseudo: Any, size: Any, is_open: Any) -> list[torch.Tensor]:
        m, dimensions = degree, pseudo.shape[1]
        values, places = [], []
        for edge in range(pseudo.shape[0]):
            row, at = [], []
            for s in range((m + 1) ** dimensions):
                product, index, stride = 1, 0, 1
                for d in range(dimensions):
                    k = s // (m + 1) ** d % (m + 1)
                    v = pseudo[edge, d] * (int(size[d]) - m * int(is_open[d]))
                    whole = int(torch.floor(v.detach()))
                    product = product * pieces[m][k](v - whole)
                    index += (whole + k) % int(size[d]) * stride
                    stride *= int(size[d])
                row.append(product)
                at.append(index)
            values.append(torch.stack(row))
            places.append(at)
        return [torch.stack(values), torch.tensor(places, dtype=torch.int32)]

    return basis


for _degree in range(4):
    graphcore(
        "SplineBasis", [torch.sigmoid(R(4, 2)), G([5, 4]), G([1, 0], torch.uint8)], _splines(_degree),
        f"degree{_degree}", degree=_degree,
    )  # fmt: skip


def _weighting(x: Any, w: Any, b: Any, i: Any) -> torch.Tensor:
    rows = [sum(b[e, s] * (x[e] @ w[int(i[e, s])]) for s in range(b.shape[1])) for e in range(x.shape[0])]
    return torch.stack(rows)


graphcore("SplineWeighting", [R(3, 2), R(4, 2, 5), R(3, 2, seed=1), G([[0, 3], [1, 1], [2, 0]])], _weighting)

# -- creation and control ----------------------------------------------------------------------------------------------

graphcore("Zeros", [], lambda: torch.zeros(2, 3), shape=[2, 3])
graphcore("Zeros", [], lambda: torch.zeros(2, dtype=torch.int32), "integers", shape=[2], dtype=6)
graphcore("ZerosLike", [R(2, 3)], lambda x: torch.zeros_like(x.detach())).numeric = False
graphcore("Init", [], lambda: torch.zeros(2, dtype=torch.int32), shape=[2], data_type=6, tensor_type=3, init_type=1)
graphcore("AllReduce", [R(3), R(3, seed=1)], lambda a, b: [a + b, a + b], ipus=[0, 1])
graphcore(
    "AllReduce", [R(3), R(3, seed=1)], lambda a, b: [torch.maximum(a, b).detach()] * 2, "most", ipus=[0, 1],
    __collectiveOperator=4,
).numeric = False  # fmt: skip

OWN = len(CASES)
"""Those of this file; others come after them."""
