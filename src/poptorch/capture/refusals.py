"""What a model cannot be compiled for: errors that name the user's line and say what to write instead."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.utils import _pytree as pytree

from poptorch.capture.locations import called_from, definition_of, innermost_location_of, location_of
from poptorch.errors import Error, ModuleTypeError, add_to_message, createPoptorchError, misuse
from poptorch.program.opinfo import SourceLocation

_BY_MASK = ("index.Tensor", "nonzero", "masked_select")

_NO_VALUES = "its data is not allocated yet"
"""What torch says when a kernel looks into a tensor that has none."""


class DynamicShapeError(Error, DynamicOutputShapeException):
    """The shape of a result depends on values. Programs that expect torch's own error for this catch it, too."""

    code = "PT2003"
    __hash__ = Exception.__hash__

    @classmethod
    def of(cls, func: Any, message: str) -> DynamicShapeError:
        """The error for a call that torch cannot infer a shape for."""
        error = misuse(cls, message)
        error.func = func
        return error


def dynamic_shape_error(func: Any, where: SourceLocation | str | None) -> DynamicShapeError:
    """The error for an operation whose shape depends on values."""
    name, line = str(func), "" if where is None else f" at {where}"
    if "nonzero" in name and "index" not in name and "nonzero" in _written_at(where):
        return DynamicShapeError.of(
            func,
            f"nonzero() is unsupported because it would produce dynamic output shapes ({name}{line}): how many "
            "elements are not zero is known when the program runs. Use torch.where(mask, x, 0), torch.topk for a fixed "
            "number of positions, or compute positions before the model is called.",
        )
    if any(part in name for part in _BY_MASK):
        return DynamicShapeError.of(
            func,
            "Indexing using boolean or byte tensor masks is unsupported because it would produce dynamic output shapes "
            f"({name}{line}). Use torch.where or masked_fill, which keep the shape.",
        )
    return DynamicShapeError.of(
        func,
        f"Unsupported ops found in compiled model: [{name}]{line}. The shape of its result depends on the values of "
        "its inputs, and a compiled program has static shapes. Compute it before the model is called and pass the "
        "result, run it on the host with poptorch.CPU, or use an operation that keeps the shape and marks what counts.",
    )


def _written_at(where: SourceLocation | str | None) -> str:
    """The user's line, as far as its file can be read: masks in an index and ``nonzero`` become the same operation."""
    file, _, line = str(where).partition(" ")[0].rpartition(":")  # of a library first, then the user's
    return linecache.getline(file, int(line)) if line.isdigit() else ""


def refuse_dynamic_shape(func: Any, args: Any, kwargs: Any, where: SourceLocation | None) -> None:
    """Refuse an operation on real values, for which shape inference is not asked, if its shape depends on them."""
    if func is torch.ops.aten.index.Tensor:
        masks = (torch.bool, torch.uint8)
        if any(isinstance(i, torch.Tensor) and i.dtype in masks for i in pytree.tree_leaves(args[1])):
            raise dynamic_shape_error(func, where)
    elif torch.Tag.dynamic_output_shape in func.tags and kwargs.get("output_size") is None:
        raise dynamic_shape_error(func, where)


def check_model(model: nn.Module) -> None:
    """Refuse modules whose ``forward`` is no Python that can be recorded.

    >>> check_model(torch.jit.trace(nn.ReLU(), torch.zeros(1)))
    Traceback (most recent call last):
    poptorch.errors.ModuleTypeError: ...
    """
    for name, module in model.named_modules():
        which = f"Its sub-module {name!r}" if name else "It"
        if isinstance(module, torch.jit.ScriptModule):
            raise misuse(
                ModuleTypeError,
                f"The model cannot be wrapped. {which} is a TorchScript module ({type(module).__name__}), which is "
                "compiled already: use the nn.Module that torch.jit.script or torch.jit.trace was given.",
            )
        if _is_lazy(module):
            raise misuse(
                ModuleTypeError,
                f"The model cannot be wrapped. {which} is a {type(module).__name__} whose parameters have no shape "
                "yet: call the model once on the host, with a batch of the right size, before you wrap it.",
            )


def _is_lazy(module: nn.Module) -> bool:
    own = (*module._parameters.values(), *module._buffers.values())
    return any(tensor is not None and nn.parameter.is_lazy(tensor) for tensor in own)


def check_layouts(results: Sequence[torch.Tensor]) -> None:
    """Refuse results that are not dense tensors."""
    for position, tensor in enumerate(results):
        if tensor.layout is not torch.strided:
            raise createPoptorchError(
                f"Result {position} of the model is a tensor with the layout {tensor.layout}, which the device does "
                "not have. Return a dense tensor: call to_dense()."
            )


def check_gradient(name: str, gradient: torch.Tensor, where: SourceLocation | None) -> None:
    """Refuse gradients that are not dense tensors; ``where`` is the line that uses the parameter."""
    if gradient.layout is not torch.strided:
        line = "" if where is None else f", which is used at {where},"
        raise createPoptorchError(
            f"The gradient of parameter {name}{line} has the layout {gradient.layout}, which the device does not have. "
            "Make the layer without sparse gradients: nn.Embedding(..., sparse=False)."
        )


@contextmanager
def lines_named(model: nn.Module, excludes: Sequence[str]) -> Iterator[None]:
    """Errors of this package name the user's line: that which was running, or that of ``forward``."""
    try:
        yield
    except DynamicOutputShapeException as why:
        if isinstance(why, Error):
            raise
        error = dynamic_shape_error(why.func, called_from(innermost_location_of(why), location_of(why, excludes)))
        raise error.with_traceback(why.__traceback__) from why
    except RuntimeError as why:
        if isinstance(why, Error) or _NO_VALUES not in str(why):
            raise
        where = location_of(why, excludes)
        line = "" if where is None else f" at {where}"
        needed = createPoptorchError(
            f"An operation{line} needs the values of a tensor, which are not known when the model is "
            "compiled. Pass the values as numbers, lists or a plain attribute of the model, or use an operation "
            "that needs none: padded sequences and a mask instead of packed ones."
        )
        raise needed.with_traceback(why.__traceback__) from why
    except Error as error:
        where = location_of(error, excludes)
        definition = definition_of(model.forward, excludes) if where is None else None
        if where is not None and str(where) not in str(error):
            add_to_message(error, f" (at {where})")
        elif definition is not None and definition.file not in str(error):
            add_to_message(error, f" (forward() is at {definition})")
        raise
