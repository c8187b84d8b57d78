"""What the original could not compile: refused here only with ``Options.strictCompatibility(True)``.

For people who prepare code for hardware. Each check looks at the call as the user wrote it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from poptorch.ambient import CaptureContext
from poptorch.errors import createPoptorchError
from poptorch.ops.recorded import is_foreign, node_of
from poptorch.ops.traits import OpKind, traits_of

_V = torch._C._VariableFunctions
Check = Callable[[tuple[Any, ...], Mapping[str, Any]], str | None]


def refuse(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise if the original refuses this call."""
    check = _CHECKS.get(func)
    problem = check(args, kwargs) if check is not None else None
    if problem is not None:
        raise createPoptorchError(f"{problem} (refused because of Options.strictCompatibility)")


def refuse_operation(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise if the original refuses this single operation, whichever function called it."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    own = next((t for t in tensors if _is_on_host(t)), None)
    if own is not None and not all(_is_on_host(t) for t in tensors):
        kind = own.type().removeprefix("torch.").removesuffix("Tensor")
        raise createPoptorchError(
            f"Expected an IPU tensor but got tensor(device=cpu, shape={list(own.shape)}, dtype={kind}). Make it with "
            "torch.tensor inside forward, or register it as a buffer (refused because of Options.strictCompatibility)"
        )
    if traits_of(func).is_in_place and args and _is_stepped_slice(args[0]):
        raise createPoptorchError(
            "In-place modification of slices with step size other than 1 is not supported. "
            "(refused because of Options.strictCompatibility)"
        )


_FUNCTIONS = "capture.strict.functions"
_MARK = "_poptorch_on_host"


@contextmanager
def torch_function(context: CaptureContext) -> Iterator[None]:
    """While a torch function runs: tensors that appear now are made by it, as ``torch.tensor`` does."""
    context.extras[_FUNCTIONS] = context.extras.get(_FUNCTIONS, 0) + 1
    try:
        yield
    finally:
        context.extras[_FUNCTIONS] -= 1


def mark_host_tensor(context: CaptureContext, func: Any, result: Any) -> None:
    """Remember a tensor that no torch function made: a constructor such as ``torch.LongTensor``, or ``from_numpy``."""
    if func is torch.ops.aten.lift_fresh.default and not context.extras.get(_FUNCTIONS):
        setattr(result, _MARK, True)


def is_unknown(tensor: Tensor) -> bool:
    """Whether the tensor is the user's own: no stand-in, and no operation made it."""
    return not isinstance(tensor, FakeTensor) and is_foreign(tensor)


def _is_on_host(tensor: Tensor) -> bool:
    return is_unknown(tensor) or getattr(tensor, _MARK, False)


def _is_stepped_slice(tensor: Any) -> bool:
    node: Any = node_of(tensor)
    while isinstance(node, fx.Node) and node.op == "call_function" and traits_of(node.target).kind is OpKind.VIEW:
        if node.target is torch.ops.aten.slice.Tensor and len(node.args) > 4 and node.args[4] != 1:
            return True
        node = node.args[0]
    return False


def _named(function: Callable[..., Any], rule: Callable[[Mapping[str, Any]], str | None]) -> Check:
    """A check of arguments by name, for functions written in Python."""
    signature = inspect.signature(function)

    def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return rule(bound.arguments)

    return check


def _no_weight(given: Mapping[str, Any]) -> str | None:
    return 'Parameter "weight" is unsupported' if given["weight"] is not None else None


def _ctc(given: Mapping[str, Any]) -> str | None:
    if given["reduction"] == "none":
        return 'CTCLoss with reduction="none" is currently not supported'
    return "CTCLoss: targets must be 2-D (batch x length)" if given["targets"].ndim != 2 else None


def _bag(given: Mapping[str, Any]) -> str | None:
    return "EmbeddingBag: padding_idx is unsupported" if given["padding_idx"] is not None else None


def _interpolate(given: Mapping[str, Any]) -> str | None:
    mode = given["mode"]
    if mode in ("linear", "trilinear"):
        return f"interpolate with mode={mode!r}: only 'nearest' is supported for 1-D and 3-D inputs"
    if given["align_corners"]:
        return "Only support align_corners=False."
    return _bilinear_factors(given) if mode == "bilinear" else None


def _bilinear_factors(given: Mapping[str, Any]) -> str | None:
    factors = given["scale_factor"]
    if factors is None:
        sizes = given["size"] if isinstance(given["size"], (tuple, list)) else [given["size"]] * 2
        factors = [size / old for size, old in zip(sizes, given["input"].shape[2:], strict=True)]
    factors = list(factors) if isinstance(factors, (tuple, list)) else [factors]
    if len(set(factors)) > 1:
        return "Non-uniform bilinear upsampling not supported"
    return "Bilinear upsampling with non-integer factor not supported" if factors[0] != int(factors[0]) else None


def _recurrent(name: str) -> Check:
    """``lstm(input, state, weights, has_biases, layers, dropout, train, bidirectional, batch_first)`` and its kin."""
    is_ = "is " if name == "RNN" else ""

    def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        has_biases, layers, dropout, _, bidirectional = args[3:8]
        if layers != 1:
            return f"Only {name} with 1 layer {is_}supported"
        if dropout:
            return f"{name} only supports dropout = 0.0"
        if bidirectional:
            return f"Bidirectional {name} is not supported" if is_ else f"bidirectional {name} not supported"
        return f"{name} without biases {is_}not supported" if not has_biases and name != "GRU" else None

    return check


def _matrix_norm(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    order = kwargs.get("ord", args[1] if len(args) > 1 else "fro")
    if order in (2, -2):
        return "Matrix 2-norm is not supported."
    return "Matrix nuclear norm is not supported." if order == "nuc" else None


def _small_integers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if any(isinstance(a, Tensor) and a.dtype in (torch.int8, torch.uint8) for a in args):
        return "Poplar does not support binary operations on 8-bit integral types."
    return None


def _unsupported(name: str) -> Check:
    return lambda args, kwargs: f"Unsupported ops found in compiled model: [aten::{name}]"


def _topk(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    unsorted = not kwargs.get("sorted", args[4] if len(args) > 4 else True)
    return "topk with sorted=False is not supported" if unsorted else None


def _strides(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    stride = kwargs.get("stride", args[2] if len(args) > 2 else ())
    if tuple(stride) == args[0].stride():
        return None
    return (
        "Poptorch does not support arbitrary manipulations of the shape and stride of a tensor. Prefer other view "
        "functions like torch.tensor.expand() over setting the shape and stride of a view manually."
    )


_NEVER = (
    "allclose", "angle", "conj", "digamma", "dist", "equal", "erfinv", "imag", "isfinite", "isinf", "kthvalue",
    "lgamma", "masked_select", "mode", "mvlgamma", "nonzero", "real", "unique", "unique_consecutive",
)  # fmt: skip
_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")
_OPERATORS = ("__and__", "__or__", "__xor__", "__rand__", "__ror__", "__rxor__")


def _checks() -> dict[Any, Check]:
    table: dict[Any, Check] = {
        F.cross_entropy: _named(F.cross_entropy, _no_weight),
        F.nll_loss: _named(F.nll_loss, _no_weight),
        F.ctc_loss: _named(F.ctc_loss, _ctc),
        F.embedding_bag: _named(F.embedding_bag, _bag),
        F.interpolate: _named(F.interpolate, _interpolate),
        F.multilabel_soft_margin_loss: _unsupported("multilabel_soft_margin_loss"),
        torch.linalg.matrix_norm: _matrix_norm,
        _V.lstm: _recurrent("LSTM"),
        _V.gru: _recurrent("GRU"),
        _V.rnn_tanh: _recurrent("RNN"),
        _V.rnn_relu: _recurrent("RNN"),
        torch.topk: _topk,
        Tensor.topk: _topk,
        torch.as_strided: _strides,
        Tensor.as_strided: _strides,
    }
    for home in (torch, Tensor):
        table |= {getattr(home, n): _unsupported(n) for n in _NEVER if callable(getattr(home, n, None))}
        table |= {getattr(home, n): _small_integers for n in _BITWISE}
    return table | {getattr(Tensor, n): _small_integers for n in _OPERATORS}


_CHECKS = _checks()
