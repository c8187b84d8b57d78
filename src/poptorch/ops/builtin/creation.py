"""Operators of ``ai.graphcore`` that create tensors, stop the program, or work on the memory of one replica."""

from __future__ import annotations

import torch

from poptorch.errors import createPoptorchError
from poptorch.ops._library import define
from poptorch.ops.builtin.attributes import Int, Ints, String
from poptorch.ops.builtin.definitions import Situation, graphcore
from poptorch.ops.combining import combined, reduction_of
from poptorch.ops.recorded import node_of

_ZEROS = {1: torch.float32, 10: torch.float16, 6: torch.int32}


@graphcore("Zeros", shape=Ints(), dtype=Int(1))
def _zeros(*, shape: list[int], dtype: int) -> torch.Tensor:
    if dtype not in _ZEROS:
        raise createPoptorchError(
            f"Unsupported data type requested: dtype is {dtype}; use 1 (float32), 10 (float16) or 6 (int32)."
        )
    return torch.zeros(shape, dtype=_ZEROS[dtype])


@graphcore("ZerosLike", differentiable=False, dtype=Int(0))
def _zeros_like(x: torch.Tensor, *, dtype: int) -> torch.Tensor:
    if x.dtype not in (torch.float16, torch.float32, torch.float64, torch.int32):
        raise createPoptorchError(f"Unsupported data type requested: {x.dtype}; use float16, float32 or int32.")
    return torch.zeros_like(x)


_POPART_TYPES = {6: torch.int32, 8: torch.int32, 10: torch.bool, 11: torch.float32, 12: torch.float16}
"""Types by their numbers in the backend's own enumeration."""


@graphcore("Init", shape=Ints(), data_type=Int(), tensor_type=Int(), init_type=Int(), batch_axis=Int(-1))
def _init(
    *, shape: list[int], data_type: int, tensor_type: int, init_type: int, batch_axis: int, at: Situation
) -> torch.Tensor:
    if init_type not in (0, 1):
        raise createPoptorchError(f"init_type must be 0 (not initialised) or 1 (zeros), not {init_type}.")
    # Numbers differ between releases of the backend; the example says what is meant.
    if at.templates:
        return torch.zeros(shape, dtype=at.templates[0].dtype)
    if data_type not in _POPART_TYPES:
        raise createPoptorchError(f"Unsupported data type requested: data_type is {data_type}.")
    return torch.zeros(shape, dtype=_POPART_TYPES[data_type])


def _stop(conditions: list[torch.Tensor]) -> None:
    if not conditions or any(bool(condition.any()) for condition in conditions):
        raise createPoptorchError(
            "The program was stopped by an Abort operator" + (", whose condition is true." if conditions else ".")
        )


ABORT = define("abort(Tensor[] conditions) -> ()", _stop, lambda conditions: None)
torch.fx.node.has_side_effect(ABORT)


@graphcore("Abort", outputs=0)
def _abort(condition: torch.Tensor | None = None) -> list[torch.Tensor]:
    if condition is not None and condition.numel() != 1:
        raise createPoptorchError(
            f"Conditional abort op can only test a scalar tensor, not one of shape {list(condition.shape)}."
        )
    ABORT([] if condition is None else [condition.detach()])
    return []


@graphcore("CopyVarUpdate")
def _copy_var_update(variable: torch.Tensor, updater: torch.Tensor, *, at: Situation) -> torch.Tensor:
    own = at.originals[0] if at.originals else variable
    node = node_of(own)
    if node is not None and node.op not in ("placeholder", "get_attr") and not own._is_view():
        raise createPoptorchError("The variable must be a buffer of the model, not the result of an operation.")
    if own.shape != updater.shape:
        raise createPoptorchError(f"The variable of shape {list(own.shape)} is updated with {list(updater.shape)}.")
    with torch.no_grad():
        own.copy_(updater.detach())
    return own.clone()


@graphcore("AllReduce", types="N", outputs=0, ipus=Ints(), attributes={"__collectiveOperator": Int(0)})
def _all_reduce(*tensors: torch.Tensor, ipus: list[int], collectiveOperator: int, at: Situation) -> list[torch.Tensor]:
    if at.templates and len(at.templates) != len(tensors):
        raise createPoptorchError(
            f"number of inputs does not equal number of outputs: {len(tensors)} and {len(at.templates)}"
        )
    if len(ipus) != len(tensors):
        raise createPoptorchError(f"number of ipus does not equal number of inputs: {len(ipus)} and {len(tensors)}")
    if any((t.shape, t.dtype) != (tensors[0].shape, tensors[0].dtype) for t in tensors):
        raise createPoptorchError("All inputs must have one shape and type.")
    name = reduction_of(collectiveOperator)
    if name == "local":
        return [tensor.clone() for tensor in tensors]
    values = list(tensors) if name == "add" else [tensor.detach() for tensor in tensors]
    result = combined(name, values)
    return [result.clone() for _ in tensors]


_FLOAT8 = {"FLOAT8_143": torch.float8_e4m3fnuz, "FLOAT8_152": torch.float8_e5m2fnuz}
_FLOATS = {"FLOAT": torch.float32, "FLOAT16": torch.float16}


def _kind(to: str, known: dict[str, torch.dtype]) -> torch.dtype:
    if to not in known:
        raise createPoptorchError(f"The attribute 'to' must be one of {', '.join(known)}, not {to!r}.")
    return known[to]


@graphcore("Pow2ScaleThenCast", types=("F", "I"), differentiable=False, to=String("FLOAT8_143"))
def _pow2_scale_then_cast(x: torch.Tensor, scale: torch.Tensor, *, to: str) -> torch.Tensor:
    kind = _kind(to, _FLOAT8)
    most = torch.finfo(kind).max
    return (x.float() * torch.exp2(scale.reshape(()).float())).clamp(-most, most).to(kind)


@graphcore("CastThenPow2Scale", types=("F", "I"), differentiable=False, to=String("FLOAT16"))
def _cast_then_pow2_scale(x: torch.Tensor, scale: torch.Tensor, *, to: str) -> torch.Tensor:
    if x.dtype not in _FLOAT8.values():
        raise createPoptorchError(f"The input must be a tensor of float8, not of {x.dtype}.")
    return (x.float() * torch.exp2(scale.reshape(()).float())).to(_kind(to, _FLOATS))
