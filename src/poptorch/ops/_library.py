"""Registering operations with torch, so that they survive capture as one node each.

Every operation that must stay visible in the captured graph is a functional operator of the namespace
``poptorch``: a schema, a kernel, a fake kernel for shapes, and, where the maths allows, an autograd formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from poptorch.errors import createPoptorchError

NAMESPACE = "poptorch"

_library = torch.library.Library(NAMESPACE, "DEF")


def define(
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
    tags: Sequence[torch.Tag] = (),
) -> Any:
    """Register ``schema`` (``name(arguments) -> results``) and return the operator, ready to be called."""
    name = schema.split("(", 1)[0]
    _library.define(schema, tags=tuple(tags))
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    if backward is not None:
        torch.library.register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=setup_context, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def separate(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``outputs``, contiguous, and copied where they share memory with an input or with each other.

    Operators promise torch that results are fresh; what a body or a user function returns need not be.
    """
    taken = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.numel()}
    fresh = []
    for tensor in outputs:
        tensor = tensor.detach().contiguous()
        if tensor.numel() and tensor.untyped_storage().data_ptr() in taken:
            tensor = tensor.clone()
        if tensor.numel():
            taken.add(tensor.untyped_storage().data_ptr())
        fresh.append(tensor)
    return fresh


def require_tensor(value: object, purpose: str) -> None:
    """Refuse anything but a tensor, naming what the argument is for."""
    if not isinstance(value, torch.Tensor):
        raise createPoptorchError(
            f"{purpose}: an argument of type {type(value).__name__} is not supported; pass a torch.Tensor."
        )
