"""Slices whose start is known only at run time."""

from __future__ import annotations

import torch

from poptorch.errors import createPoptorchError

# What a device stores instead; error messages speak about device types.
_DEVICE_TYPES = {torch.int64: torch.int32, torch.float64: torch.float32}


def dynamic_slice(tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int) -> torch.Tensor:
    """Every ``step``-th of the ``size`` elements along ``dim`` that begin at the run-time value of ``start``.

    A slice that passes the end continues at the beginning. ``size`` must divide the dimension.

    >>> dynamic_slice(torch.arange(6), 0, torch.tensor(2), 3, 1)
    tensor([2, 3, 4])
    """
    if not isinstance(tensor, torch.Tensor):
        raise createPoptorchError(f"dynamic_slice of a {type(tensor).__name__} is not supported; pass a torch.Tensor.")
    _require_int(dim, "Dimension")
    _require_start(start, "dynamic_slice")
    _require_int(size, "Size")
    _require_int(step, "Step")
    if step < 1:
        raise createPoptorchError(f"Slicing step must be at least 1, not {step}.")
    _require_positive(size)
    length = tensor.shape[dim]
    if length % size:
        raise createPoptorchError(
            f"The size of the slice ({size}) must be a factor of the slicing dimension ({length})."
        )
    return tensor.index_select(dim, _positions(start, size, step, length))


def dynamic_update(input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int) -> torch.Tensor:
    """A copy of ``input`` in which the ``size`` elements along ``dim`` from the run-time ``start`` are
    ``src``.

    >>> dynamic_update(torch.zeros(4), torch.ones(2), 0, torch.tensor(1), 2)
    tensor([0., 1., 1., 0.])
    """
    if not isinstance(input, torch.Tensor):
        raise createPoptorchError(f"dynamic_update of a {type(input).__name__} is not supported; pass a torch.Tensor.")
    if not isinstance(src, torch.Tensor):
        raise createPoptorchError("Src argument to dynamic_update must be a torch.tensor")
    _require_int(dim, "Dimension")
    _require_start(start, "dynamic_update")
    _require_int(size, "Size")
    if input.dim() != src.dim():
        raise createPoptorchError(
            f"input and src tensors must have same dimensionality. ({input.dim()}) vs ({src.dim()})"
        )
    if input.dtype != src.dtype:
        a, b = (_DEVICE_TYPES.get(t.dtype, t.dtype) for t in (input, src))
        raise createPoptorchError(f"input and src tensor must have same dtype. ({a} vs {b})")
    _require_positive(size)
    if src.shape[dim] != size:
        raise createPoptorchError(
            f"dynamic_update: src has {src.shape[dim]} elements along dimension {dim}, but the size is {size}."
        )
    if size > input.shape[dim]:
        raise createPoptorchError(
            f"dynamic_update: a slice of {size} elements does not fit dimension {dim} of size {input.shape[dim]}."
        )
    return input.index_copy(dim, _positions(start, size, 1, input.shape[dim]), src)


def _positions(start: torch.Tensor, size: int, step: int, length: int) -> torch.Tensor:
    offsets = torch.arange(0, size, step, device=start.device)
    return (start.reshape(()).to(torch.int64) + offsets) % length


def _require_int(value: object, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise createPoptorchError(f"{name} must be an integer.")


def _require_start(start: object, function: str) -> None:
    if not isinstance(start, torch.Tensor):
        raise createPoptorchError(f"Slice start argument to {function} must be a torch.tensor")
    if start.dtype.is_floating_point or start.dtype.is_complex or start.dtype == torch.bool:
        raise createPoptorchError(f"Expected integer typed start tensor, got {start.dtype}.")
    if start.numel() != 1:
        raise createPoptorchError(
            f"Slice start argument to {function} must have one element, not shape {list(start.shape)}."
        )


def _require_positive(size: int) -> None:
    if size == 0:
        raise createPoptorchError("The start and end of a slice must be different.")
    if size < 0:
        raise createPoptorchError(
            f"Taking a slice of a tensor with the end less than the start is not supported (size {size})."
        )
