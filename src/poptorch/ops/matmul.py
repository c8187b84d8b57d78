"""Matrix products computed in pieces, so that less memory is needed at a time."""

from __future__ import annotations

from typing import Any

import torch

from poptorch import ambient
from poptorch.enums import MatMulSerializationMode
from poptorch.errors import createPoptorchError
from poptorch.ops._library import define, require_tensor

_Mode = MatMulSerializationMode
_M, _N, _P = _Mode.InputChannels.value, _Mode.ReducingDim.value, _Mode.OutputChannels.value

# (… m×n) @ (… n×p): each gradient is a product too, and is split along the same one of m, n and p.
_LHS_GRADIENT_MODE = {_M: _M, _N: _P, _P: _N}  # gradient (m×p) @ rhsᵀ (p×n)
_RHS_GRADIENT_MODE = {_M: _N, _N: _M, _P: _P}  # lhsᵀ (n×m) @ gradient (m×p)


def split_matmul(lhs: torch.Tensor, rhs: torch.Tensor, mode: str, factor: int, keep_precision: bool) -> torch.Tensor:
    """``lhs @ rhs`` for operands of two or more dimensions, one of ``factor`` pieces at a time.

    Only one piece's temporaries (broadcast copies, float32 partial sums) exist at once.
    """
    shape = (*torch.broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2]), lhs.shape[-2], rhs.shape[-1])
    dtype = lhs.dtype
    if mode == _N:
        wide = keep_precision and dtype == torch.float16
        total = torch.zeros(shape, dtype=torch.float32 if wide else dtype, device=lhs.device)
        for left, right in zip(lhs.chunk(factor, -1), rhs.chunk(factor, -2), strict=True):
            total += left.to(total.dtype) @ right.to(total.dtype)
        return total.to(dtype)
    result = torch.empty(shape, dtype=dtype, device=lhs.device)
    if mode == _M:
        for part, left in zip(result.chunk(factor, -2), lhs.chunk(factor, -2), strict=True):
            part.copy_(left @ rhs)
    else:
        for part, right in zip(result.chunk(factor, -1), rhs.chunk(factor, -1), strict=True):
            part.copy_(lhs @ right)
    return result


def _shape_only(lhs: torch.Tensor, rhs: torch.Tensor, mode: str, factor: int, keep_precision: bool) -> torch.Tensor:
    batch = torch.broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
    return lhs.new_empty((*batch, lhs.shape[-2], rhs.shape[-1]))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    lhs, rhs, *ctx.settings = inputs
    ctx.save_for_backward(lhs, rhs)


def _gradients(ctx: Any, gradient: torch.Tensor) -> Any:
    lhs, rhs = ctx.saved_tensors
    mode, factor, keep = ctx.settings
    lhs_gradient = rhs_gradient = None
    if ctx.needs_input_grad[0]:
        product = SERIALIZED_MATMUL(gradient, rhs.mT, _LHS_GRADIENT_MODE[mode], factor, keep)
        lhs_gradient = product.sum_to_size(lhs.shape)
    if ctx.needs_input_grad[1]:
        if rhs.dim() == 2:  # a shared weight: the batch is part of the sum, not a dimension of the gradient
            lhs, gradient = lhs.flatten(0, -2), gradient.flatten(0, -2)
        product = SERIALIZED_MATMUL(lhs.mT, gradient, _RHS_GRADIENT_MODE[mode], factor, keep)
        rhs_gradient = product.sum_to_size(rhs.shape)
    return lhs_gradient, rhs_gradient, None, None, None


SERIALIZED_MATMUL = define(
    "serialized_matmul(Tensor lhs, Tensor rhs, str mode, int factor, bool keep_precision) -> Tensor",
    split_matmul,
    _shape_only,
    backward=_gradients,
    setup_context=_save,
)


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """``torch.matmul(lhs, rhs)`` computed in ``factor`` pieces along the dimension that ``mode`` names.

    For m×n times n×p, ``InputChannels`` splits m, ``ReducingDim`` n, ``OutputChannels`` p; gradients are
    split the same way. ``keep_precision`` adds the partial sums of float16 products in float32.

    >>> mode = MatMulSerializationMode.InputChannels
    >>> serializedMatMul(torch.ones(4, 2), torch.ones(2, 3), mode, factor=2).shape
    torch.Size([4, 3])
    """
    assert isinstance(mode, MatMulSerializationMode), "mode must be a poptorch.MatMulSerializationMode"
    assert isinstance(factor, int), "factor must be an int"
    assert isinstance(keep_precision, bool), "keep_precision must be a bool"
    require_tensor(lhs, "poptorch.serializedMatMul")
    require_tensor(rhs, "poptorch.serializedMatMul")
    if mode == MatMulSerializationMode.Disabled:
        return torch.matmul(lhs, rhs)
    left = lhs.unsqueeze(0) if lhs.dim() == 1 else lhs
    right = rhs.unsqueeze(1) if rhs.dim() == 1 else rhs
    split = {_M: left.shape[-2], _N: left.shape[-1], _P: right.shape[-1]}[mode.value]
    if factor <= 0 or split % factor:
        raise createPoptorchError(
            f"Invalid serialisation factor {factor}: {mode} splits a dimension of size {split}, so the "
            "factor must be positive and divide it."
        )
    if ambient.current() is None:
        return torch.matmul(lhs, rhs)
    if left.shape[-1] != right.shape[-2] or left.dtype != right.dtype:
        return torch.matmul(lhs, rhs)  # torch explains the mismatch
    product: torch.Tensor = SERIALIZED_MATMUL(left, right, mode.value, factor, keep_precision)
    if lhs.dim() == 1:
        product = product.squeeze(-2)
    return product.squeeze(-1) if rhs.dim() == 1 else product
