"""Complex weights that are trained: the device keeps their real and imaginary parts, in a last dimension of two.

So updates, sums over replicas and everything else that counts elements sees real numbers, as torch's optimizers do.
"""

from __future__ import annotations

import torch


def as_stored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of the host in the form in which the device keeps it as ``dtype``: a view.

    >>> as_stored(torch.tensor([1 + 2j]), torch.float32)
    tensor([[1., 2.]])
    """
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() and not dtype.is_complex else tensor


def as_on_host(stored: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """What the device keeps of a ``tensor`` of the host, in its form.

    >>> as_on_host(torch.tensor([[1.0, 2.0]]), torch.tensor([0j]))
    tensor([1.+2.j])
    """
    return torch.view_as_complex(stored.contiguous()) if tensor.is_complex() and not stored.is_complex() else stored
