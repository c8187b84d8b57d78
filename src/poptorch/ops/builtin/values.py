"""What many built-in operators need: constants, axes, broadcasting of the first versions of ONNX, numbers of types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from poptorch.errors import createPoptorchError
from poptorch.ops.recorded import node_of, tracer

ONNX_TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int32,
    9: torch.bool,
    10: torch.float16,
    11: torch.float32,
    12: torch.int32,
    13: torch.int32,
}
"""Types by their numbers in ONNX, as the device has them: 64-bit and unsigned types have 32 bits."""


def onnx_type(number: int) -> torch.dtype:
    """The type with this number in ONNX.

    >>> onnx_type(10)
    torch.float16
    """
    if number not in ONNX_TYPES:
        raise createPoptorchError(f"Unsupported data type requested: {number} is not the ONNX number of a type.")
    return ONNX_TYPES[number]


def values_of(tensor: torch.Tensor, what: str) -> list[Any]:
    """The values of an input that decides a shape: a constant of the model, that depends on no input or weight."""
    recording, node = tracer(), node_of(tensor)
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        if node is not None:
            tensor = _computed(node, what, {}, recording)
        elif isinstance(tensor, FakeTensor):
            raise _unknown(what)
        values: list[Any] = tensor.flatten().tolist()
    return values


def _computed(node: fx.Node, what: str, known: dict[fx.Node, Any], recording: Any) -> Any:
    if node not in known:
        if node.op == "placeholder":
            raise _unknown(what)
        if node.op == "get_attr":
            known[node] = getattr(recording.root, str(node.target))
        else:
            args, kwargs = fx.map_arg(
                (node.args, node.kwargs), lambda operand: _computed(operand, what, known, recording)
            )
            assert callable(node.target)
            known[node] = node.target(*args, **kwargs)
    return known[node]


def _unknown(what: str) -> Exception:
    return createPoptorchError(
        f"Need the value of the {what} input: it decides a shape, so it must be a constant of the model, for instance "
        "torch.tensor([…]) in forward(), and not depend on inputs, weights or buffers."
    )


def absent(tensor: torch.Tensor | None) -> bool:
    """Whether an optional input was left out: not given, or a tensor without elements in its place."""
    return tensor is None or not tensor.numel()


def axis_of(axis: int, rank: int, *, negative: bool = True) -> int:
    """An axis counted from the front."""
    if not (-rank if negative else 0) <= axis < max(rank, 1):
        raise createPoptorchError(
            f"The axis {axis} is outside the acceptable range [{-rank if negative else 0}, {rank - 1}] of a tensor of "
            f"rank {rank}."
        )
    return axis % rank if rank else 0


def axes_of(axes: Sequence[int] | None, rank: int) -> list[int]:
    """Different axes counted from the front; all of them if none are named."""
    if axes is None:
        return list(range(rank))
    found = [axis_of(axis, rank) for axis in axes]
    if len(set(found)) < len(found):
        raise createPoptorchError(f"The axes {list(axes)} name one axis twice.")
    return found


def along(values: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
    """A vector as a tensor of some rank that varies along one axis."""
    return values.reshape([-1 if d == axis else 1 for d in range(rank)])


def aligned(a: torch.Tensor, b: torch.Tensor, broadcast: int, axis: int | None) -> torch.Tensor:
    """``b`` in a shape that broadcasts to that of ``a`` as the first versions of ONNX say."""
    if not broadcast:
        if a.shape != b.shape:
            raise createPoptorchError(
                f"Shapes {list(a.shape)} and {list(b.shape)} differ, and the attribute 'broadcast' is 0. Use version 7 "
                "or later of ai.onnx, where shapes broadcast."
            )
        return b
    if axis is None:
        return b
    axis = axis_of(axis, a.dim())
    return b.reshape([*b.shape, *[1] * (a.dim() - axis - b.dim())])


def reduced(values: torch.Tensor, reduction: str, count: torch.Tensor | int | None = None) -> torch.Tensor:
    """A loss reduced as the attribute ``reduction`` says; ``count`` is what a mean divides by."""
    match reduction:
        case "None":
            return values
        case "Sum":
            return _total(values)
        case "Mean":
            total = _total(values, keep=True) / (values.numel() if count is None else count)
            return total.to(values.dtype)
    raise createPoptorchError(f"Unexpected ReductionType string, {reduction}. Cannot convert to ReductionType")


def _total(values: torch.Tensor, keep: bool = False) -> torch.Tensor:
    """The sum of all elements; that of halves in float32."""
    if values.dtype is not torch.float16:
        return values.sum()
    total = values.float().sum()
    return total if keep else total.to(values.dtype)
