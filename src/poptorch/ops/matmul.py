"""Matrix products computed in pieces, so that less memory is needed at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from poptorch import ambient
from poptorch.enums import MatMulSerializationMode
from poptorch.errors import createPoptorchError
from poptorch.ops._library import define, require_tensor

_PRODUCTS = "ops.products"

_Mode = MatMulSerializationMode
_M, _N, _P = _Mode.InputChannels.value, _Mode.ReducingDim.value, _Mode.OutputChannels.value

# (… m×n) @ (… n×p): each gradient is a product too, and is split along the same one of m, n and p.
_LHS_GRADIENT_MODE = {_M: _M, _N: _P, _P: _N}  # gradient (m×p) @ rhsᵀ (p×n)
_RHS_GRADIENT_MODE = {_M: _N, _N: _M, _P: _P}  # lhsᵀ (n×m) @ gradient (m×p)


def split_matmul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: str,
    factor: int,
    keep_precision: bool,
    batch: Sequence[int] | None = None,
) -> torch.Tensor:
    """``lhs @ rhs`` for operands of two or more dimensions, one of ``factor`` pieces at a time.

    Pieces are written into, or added up in, the memory of the result itself; what else a piece needs (copies of
    operands that BLAS cannot read as they are, float32 values of float16 ones) exists for one piece at a time.
    ``batch`` asks for the sum over those batch dimensions that it gives the size 1 or leaves out.
    """
    batch = torch.broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2]) if batch is None else batch
    partial_sums = torch.float32 if mode == _N and keep_precision and lhs.dtype == torch.float16 else lhs.dtype
    total = torch.empty((*batch, lhs.shape[-2], rhs.shape[-1]), dtype=partial_sums, device=lhs.device)
    folded = _folded(total, lhs, rhs)
    add_product = partial(_add_half_product, mode, factor) if lhs.dtype == torch.float16 else _add_product
    for index, (part, left, right) in enumerate(_pieces(*folded, mode, factor)):
        add_product(part, left, right, mode == _N and index > 0)
    return total.to(lhs.dtype)


def _folded(
    total: torch.Tensor, lhs: torch.Tensor, rhs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same product without the batch, where memory allows such views.

    A batch of rows times one matrix is one large matrix times that matrix; the sum of the products of a batch is one
    product with a longer sum.
    """
    if rhs.dim() == 2 and lhs.dim() > 2 and total.dim() == lhs.dim() and _is_one_block_of_rows(lhs):
        return _rows(total), _rows(lhs), rhs
    if total.dim() == 2 and lhs.shape[:-2] == rhs.shape[:-2] and lhs.dim() > 2:
        transposed = lhs.mT
        if _is_one_block_of_rows(transposed) and _is_one_block_of_rows(rhs):
            return total, _rows(transposed).mT, _rows(rhs)
    return total, lhs, rhs


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten(0, -2)


def _is_one_block_of_rows(tensor: torch.Tensor) -> bool:
    sizes, strides = tensor.shape[:-1], tensor.stride()[:-1]
    return all(strides[i] == sizes[i + 1] * strides[i + 1] for i in range(len(sizes) - 1))


def _pieces(
    total: torch.Tensor, lhs: torch.Tensor, rhs: torch.Tensor, mode: str, factor: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Part of the result, and the parts of the operands whose product belongs there."""
    if mode == _M:
        return zip(total.chunk(factor, -2), lhs.chunk(factor, -2), repeat(rhs))
    if mode == _N:
        return zip(repeat(total), lhs.chunk(factor, -1), rhs.chunk(factor, -2))
    return zip(total.chunk(factor, -1), repeat(lhs), rhs.chunk(factor, -1))


def _add_product(part: torch.Tensor, left: torch.Tensor, right: torch.Tensor, add: bool) -> None:
    """``part = left @ right``, or ``part += left @ right``, without another tensor of that size if torch can do so."""
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    beta = int(add)  # zero means that what is in the memory does not count
    if not batch:
        part.addmm_(left, right, beta=beta)
    elif part.shape[:-2] == batch:
        flat = part.flatten(0, -3)  # a view: parts are cut off in the last two dimensions
        flat.baddbmm_(_flat(left, batch), _flat(right, batch), beta=beta)
    elif part.shape[:-2].numel() == 1:  # the sum over the whole batch
        part.view(part.shape[-2:]).addbmm_(_flat(left, batch), _flat(right, batch), beta=beta)
    else:
        _store(part, (left @ right).sum_to_size(part.shape), add)


def _add_half_product(
    mode: str, factor: int, part: torch.Tensor, left: torch.Tensor, right: torch.Tensor, add: bool
) -> None:
    """As everywhere on the host, float16 values are multiplied in float32 and the result is rounded.

    Each piece is cut once more, across the first cut, so that float32 copies of all three matrices stay small.
    """
    if mode == _N:
        right = right.float()
        for rows, left_rows, _ in _pieces(part, left, right, _M, factor):
            if rows.dtype == torch.float32:
                _add_product(rows, left_rows.float(), right, add)
            else:
                product = torch.empty_like(rows, dtype=torch.float32)
                _add_product(product, left_rows.float(), right, False)
                _store(rows, product, add)
        return
    wide = torch.empty_like(part, dtype=torch.float32)
    for index, (_, columns, rows) in enumerate(_pieces(wide, left, right, _N, factor)):
        _add_product(wide, columns.float(), rows.float(), index > 0)
    _store(part, wide, add)


def _store(part: torch.Tensor, value: torch.Tensor, add: bool) -> None:
    if add:
        part.add_(value)
    else:
        part.copy_(value)


def _flat(operand: torch.Tensor, batch: Sequence[int]) -> torch.Tensor:
    """The operand with one batch dimension; repeated, not copied, where strides can say so."""
    return operand.expand(*batch, *operand.shape[-2:]).flatten(0, -3)


def _shape_only(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: str,
    factor: int,
    keep_precision: bool,
    batch: Sequence[int] | None = None,
) -> torch.Tensor:
    batch = torch.broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2]) if batch is None else batch
    return lhs.new_empty((*batch, lhs.shape[-2], rhs.shape[-1]))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    lhs, rhs, *ctx.settings = inputs
    ctx.save_for_backward(lhs, rhs)


def _gradients(ctx: Any, gradient: torch.Tensor) -> Any:
    lhs, rhs = ctx.saved_tensors
    mode, factor, keep, _ = ctx.settings
    lhs_gradient = rhs_gradient = None
    if ctx.needs_input_grad[0]:
        lhs_mode = _LHS_GRADIENT_MODE[mode]
        lhs_gradient = SERIALIZED_MATMUL(gradient, rhs.mT, lhs_mode, factor, keep, lhs.shape[:-2])
    if ctx.needs_input_grad[1]:
        rhs_mode = _RHS_GRADIENT_MODE[mode]
        rhs_gradient = SERIALIZED_MATMUL(lhs.mT, gradient, rhs_mode, factor, keep, rhs.shape[:-2])
    return lhs_gradient, rhs_gradient, None, None, None, None


SERIALIZED_MATMUL = define(
    "serialized_matmul(Tensor lhs, Tensor rhs, str mode, int factor, bool keep_precision, "
    "SymInt[]? batch=None) -> Tensor",
    split_matmul,
    _shape_only,
    backward=_gradients,
    setup_context=_save,
)


def remember_operands(product: torch.Tensor, lhs: torch.Tensor, rhs: torch.Tensor) -> None:
    """Note what a matrix product of the running capture was made of, for as long as it is alive."""
    context = ambient.current()
    if context is not None:
        context.extras.setdefault(_PRODUCTS, WeakIdKeyDictionary())[product] = (lhs, rhs)


def operands_of(product: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The two operands of a product of the running capture; ``None`` for any other tensor."""
    context = ambient.current()
    products = {} if context is None else context.extras.get(_PRODUCTS, {})
    found: tuple[torch.Tensor, torch.Tensor] | None = products.get(product)
    return found


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
