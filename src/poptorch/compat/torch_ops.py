"""The names in ``torch.ops.poptorch`` that programs call instead of the public functions.

``nop`` and ``recomputation_checkpoint`` are operators of this package already. The others are plain functions: what
they do is recorded as the operations that they call.
"""

from __future__ import annotations

from typing import Any

import torch

from poptorch import ambient, ops
from poptorch.enums import MatMulSerializationMode
from poptorch.errors import createPoptorchError
from poptorch.ops._library import NAMESPACE
from poptorch.ops.layout import FLOAT_FORMATS
from poptorch.ops.matmul import operands_of
from poptorch.placement import IpuId, PhaseId, blocks, legacy

_PUSHED = "compat.name_scopes"
_REDUCTIONS = ("sum", "mean", "none")
_DTYPES = {
    "FLOAT": torch.float32,
    "FLOAT32": torch.float32,
    "HALF": torch.float16,
    "FLOAT16": torch.float16,
}


# --- scopes -----------------------------------------------------------------------------------------------------


def push_name_scope(name: str) -> None:
    """Prefix the names of operations with ``name`` until :func:`pop_name_scope`. Does nothing outside of capture."""
    context = ambient.current()
    if context is not None:
        context.extras.setdefault(_PUSHED, []).append((len(context.name_scopes), name))
        context.name_scopes.append(name)


def pop_name_scope() -> None:
    """End the scope that was pushed last. Does nothing outside of capture, or when there is none."""
    context = ambient.current()
    pushed: list[tuple[int, str]] = [] if context is None else context.extras.get(_PUSHED, [])
    if context is None or not pushed:
        return
    place, name = pushed.pop()
    # Hooks of a module run after the scope of the module has ended, and this one with it.
    if context.name_scopes[place : place + 1] == [name]:
        del context.name_scopes[place]


def set_attribute(attribute: str, key: str, value: str) -> None:
    """Attach a pair to all following operations, until :func:`clear_attribute`. Does nothing outside of capture."""
    context = ambient.current()
    if context is not None:
        # A new dictionary: operations recorded before keep theirs.
        pairs = {**context.attributes.get(attribute, {}), key: value}
        context.attributes = {**context.attributes, attribute: pairs}


def clear_attribute(attribute: str, key: str) -> None:
    """Take back :func:`set_attribute`."""
    context = ambient.current()
    if context is not None:
        pairs = {k: v for k, v in context.attributes.get(attribute, {}).items() if k != key}
        others = {name: group for name, group in context.attributes.items() if name != attribute}
        context.attributes = {**others, attribute: pairs} if pairs else others


def begin_ipu_block(stage_id: int, phase_id: int = PhaseId.Disabled, ipu_id: int = IpuId.SameAsStage) -> None:
    """Place the following operations by numbers. Does nothing outside of capture."""
    if not isinstance(ipu_id, IpuId) and ipu_id in tuple(IpuId):
        ipu_id = IpuId(ipu_id)
    legacy.PhaseScope(stage_id, phase_id, ipu_id).__enter__()


def end_ipu_block() -> None:
    """Leave the block: no operation may follow until another one begins."""
    blocks.close()


# --- operations -------------------------------------------------------------------------------------------------


def internal_cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """The tensor as ``"FLOAT"`` or ``"HALF"``.

    >>> internal_cast(torch.ones(1), "HALF").dtype
    torch.float16
    """
    if dtype not in _DTYPES:
        raise createPoptorchError(f"internal_cast: {dtype!r} is no type; use one of {', '.join(_DTYPES)}.")
    return tensor.to(_DTYPES[dtype])


def identity_loss(x: torch.Tensor, reduction: int | str) -> torch.Tensor:
    """``poptorch.identity_loss``; 0, 1 and 2 stand for the sum, the mean and no reduction.

    >>> identity_loss(torch.tensor([1.0, 3.0]), 1)
    tensor(2.)
    """
    if isinstance(reduction, int):
        assert reduction in range(len(_REDUCTIONS)), "Unsupported reduction type!"
        reduction = _REDUCTIONS[reduction]
    return ops.identity_loss(x, reduction)


def ipu_print_tensor(tensor: torch.Tensor, title: str = "", *layout: Any, **settings: Any) -> torch.Tensor:
    """``poptorch.ipu_print_tensor``; the float format may be given by its number."""
    formats = {number: word for word, number in FLOAT_FORMATS.items()}
    if len(layout) > _FLOAT_FORMAT_AT and isinstance(layout[_FLOAT_FORMAT_AT], int):
        word = formats.get(layout[_FLOAT_FORMAT_AT], str(layout[_FLOAT_FORMAT_AT]))
        layout = (*layout[:_FLOAT_FORMAT_AT], word, *layout[_FLOAT_FORMAT_AT + 1 :])
    elif isinstance(settings.get("float_format"), int):
        settings["float_format"] = formats.get(settings["float_format"], str(settings["float_format"]))
    return ops.ipu_print_tensor(tensor, title, *layout, **settings)


_FLOAT_FORMAT_AT = 5
"""Its position after the title."""


def set_matmul_serialization(
    matmul: torch.Tensor, mode: str, factor: int, keep_precision: bool = False
) -> torch.Tensor:
    """Compute a product in parts after the fact; as ``poptorch.serializedMatMul`` with its operands."""
    known = [member.value for member in MatMulSerializationMode]
    if mode not in known:
        raise createPoptorchError(f"set_matmul_serialization: {mode!r} is no mode; use one of {', '.join(known)}.")
    if ambient.current() is None or mode == MatMulSerializationMode.Disabled.value:
        return matmul
    operands = operands_of(matmul)
    if operands is None:
        raise createPoptorchError(
            "set_matmul_serialization takes the result of a matrix product (torch.matmul, @), as it is. Call "
            "poptorch.serializedMatMul(lhs, rhs, mode, factor) instead."
        )
    return ops.serializedMatMul(*operands, MatMulSerializationMode(mode), factor, bool(keep_precision))


def register() -> None:
    """Make the functions known as ``torch.ops.poptorch.<name>``."""
    namespace = getattr(torch.ops, NAMESPACE)
    for function in (
        push_name_scope, pop_name_scope, set_attribute, clear_attribute, begin_ipu_block, end_ipu_block, internal_cast,
        identity_loss, ipu_print_tensor, set_matmul_serialization, ops.set_available_memory,
    ):  # fmt: skip
        setattr(namespace, function.__name__, function)
