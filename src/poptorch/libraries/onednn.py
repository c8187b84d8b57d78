"""Products of float32 matrices by the oneDNN inside torch, with or without a batch of them.

torch reaches it for shorter types only, although ``at::native::mkldnn_matmul`` takes float32 as well. It is an exported
function of torch's library. Its arguments are references to tensors, and a tensor is one pointer in C++, which Python
knows: so no compiler is needed to call it. :func:`is_there` tries that once, and compares the result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

SYMBOL = "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff"
"""``void at::native::mkldnn_matmul(const Tensor& left, const Tensor& right, const Tensor& out, float, float)``."""

_Native = Callable[..., None]


@cache
def _native() -> _Native | None:
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = getattr(ctypes.CDLL(str(path)), SYMBOL)
    except (OSError, AttributeError):
        return None
    reference = ctypes.POINTER(ctypes.c_void_p)
    function.argtypes = [reference, reference, reference, ctypes.c_float, ctypes.c_float]
    function.restype = None
    native: _Native = function
    return native


@cache
def is_there() -> bool:
    """Whether this torch has a oneDNN that multiplies float32 as it is called here."""
    if not torch.backends.mkldnn.is_available() or _native() is None:
        return False
    left = torch.arange(6.0).view(2, 3)
    right = torch.arange(12.0).view(3, 4)
    return torch.equal(matmul(left, right), torch.mm(left, right))  # whole numbers: no sum is rounded


def matmul_into(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, keep: float = 0.0, share: float = 1.0
) -> None:
    """``keep`` times ``out`` and ``share`` times the product, in place. All are float32, of two or three dimensions."""
    native = _native()
    assert native is not None, "asked for without is_there()"
    # What the pointers point to lives in this frame's arguments.
    operands = (ctypes.byref(ctypes.c_void_p(tensor._cdata)) for tensor in (left, right, out))
    native(*operands, keep, share)


def matmul_out(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> None:
    """The product, in memory that is there."""
    matmul_into(left, right, out)


def matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product of two matrices, or of each pair of two batches of them.

    >>> if is_there():
    ...     print(matmul(torch.ones(2, 3), torch.ones(3, 1)).flatten())
    ... else:
    ...     print(torch.full((2,), 3.0))
    tensor([3., 3.])
    """
    out = left.new_empty((*left.shape[:-1], right.shape[-1]))
    matmul_into(left, right, out)
    return out


def addmm(bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product of two matrices, and a bias that is added to it."""
    return matmul(left, right).add_(bias)


def baddbmm(bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The products of two batches of matrices, and what is added to them."""
    return matmul(left, right).add_(bias)
