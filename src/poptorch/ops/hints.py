"""Identities that tell the compiler something about a value: keep it, store it, plan its producer, overlap
its copy.

Each one is an operator of its own and carries its setting as an argument, so the hint travels with the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from poptorch import ambient
from poptorch.arg_parsers import parser_for
from poptorch.enums import OverlapMode
from poptorch.errors import createPoptorchError
from poptorch.ops._library import define, require_tensor


def _copy(tensor: torch.Tensor, *_setting: Any) -> torch.Tensor:
    return tensor.clone()


def _like(tensor: torch.Tensor, *_setting: Any) -> torch.Tensor:
    return torch.empty_like(tensor)


def _identity_operator(name: str, setting: str = "") -> Any:
    count = setting.count(",") + bool(setting)

    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return (gradient, *[None] * count) if count else gradient

    schema = f"{name}(Tensor x{', ' + setting if setting else ''}) -> Tensor"
    return define(schema, _copy, _like, backward=backward, setup_context=_nothing_saved)


def _nothing_saved(ctx: Any, inputs: Any, output: Any) -> None:
    """The gradient of an identity needs nothing."""


NOP = _identity_operator("nop")
AVAILABLE_MEMORY = _identity_operator("available_memory", "float proportion")
CHECKPOINT = _identity_operator("recomputation_checkpoint")
OVERLAP_INPUT = _identity_operator("overlap_input", "str mode")
OVERLAP_OUTPUT = _identity_operator("overlap_output", "str mode")

HINTS = (AVAILABLE_MEMORY, CHECKPOINT, OVERLAP_INPUT, OVERLAP_OUTPUT)
"""Operators that a compiler may replace by their input once it has read them; ``NOP`` must stay."""


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Return the input through an operation that no graph optimisation removes.

    >>> nop(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    require_tensor(tensor, "poptorch.nop")
    return NOP(tensor) if ambient.current() is not None else tensor


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Tell the planner of the operation that produced ``tensor`` how much tile memory it may use temporarily.

    The proportion is in (0, 1]; without this call 0.6 applies. It reaches through views and bias additions to
    the convolution, matrix product, gather or scatter underneath; values do not change.

    >>> set_available_memory(torch.ones(2, 2) @ torch.ones(2, 2), 0.3)
    tensor([[2., 2.],
            [2., 2.]])
    """
    require_tensor(tensor, "poptorch.set_available_memory")
    if isinstance(available_memory_proportion, bool) or not isinstance(available_memory_proportion, (int, float)):
        raise createPoptorchError(
            "availableMemoryProportion must be in (0,1], given as a float: "
            f"{type(available_memory_proportion).__name__} is not supported."
        )
    if not 0.0 < available_memory_proportion <= 1.0:
        raise createPoptorchError(
            f"availableMemoryProportion must be in (0,1], but set_available_memory got {available_memory_proportion}."
        )
    if ambient.current() is None:
        return tensor
    return AVAILABLE_MEMORY(tensor, float(available_memory_proportion))


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Store these tensors for the backward pass instead of recomputing them.

    One tensor gives one tensor, several give a tuple, one list or tuple gives the same container.

    >>> recomputationCheckpoint([torch.ones(1), torch.zeros(1)])
    [tensor([1.]), tensor([0.])]
    """
    values = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    if any(not isinstance(value, torch.Tensor) for value in values):
        raise ValueError("All inputs must be tensors")
    stored = [CHECKPOINT(value) if ambient.current() is not None else value for value in values]
    if values is tensors:
        return stored[0] if len(stored) == 1 else tuple(stored)
    if hasattr(values, "_fields"):
        return type(values)(*stored)
    return type(values)(stored)


def set_overlap_for_input(input_tensor: Any, mode: OverlapMode) -> Any:
    """Copy this model input to the device while the previous iteration still computes, as ``mode`` says.

    Takes a tensor or any nesting of tuples, lists and dictionaries; use the result in place of the argument.

    >>> set_overlap_for_input([torch.ones(1), "label"], OverlapMode.NoOverlap)
    [tensor([1.]), 'label']
    """
    return _overlapped("set_overlap_for_input", OVERLAP_INPUT, input_tensor, mode)


def set_overlap_for_output(output_tensor: Any, mode: OverlapMode) -> Any:
    """Copy this model output to the host while the next iteration already computes, as ``mode`` says.

    >>> set_overlap_for_output(torch.ones(1), OverlapMode.NoOverlap)
    tensor([1.])
    """
    return _overlapped("set_overlap_for_output", OVERLAP_OUTPUT, output_tensor, mode)


def _overlapped(function: str, operator: Any, structure: Any, mode: OverlapMode) -> Any:
    if not isinstance(mode, OverlapMode):
        raise createPoptorchError(
            f"poptorch.{function}: mode {mode!r} is not supported; use a member of poptorch.OverlapMode."
        )
    if ambient.current() is None:
        return structure
    return _map_tensors(structure, lambda tensor: operator(tensor, mode.value))


def _map_tensors(structure: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def apply(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return function(leaf)
        parser = parser_for(type(leaf))
        if parser is None:
            return leaf
        return parser.reconstruct(leaf, iter([function(tensor) for tensor in parser.yieldTensors(leaf)]))

    return pytree.tree_map(apply, structure, is_leaf=lambda value: parser_for(type(value)) is not None)
