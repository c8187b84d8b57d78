"""Which operations run in which floating-point type inside an autocast region.

A :class:`Policy` is four lists of torch functions and ``torch.nn.Module`` classes. ``default`` is the policy
that ``Options.Precision`` starts with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

LISTS = ("fp16", "fp32", "promote", "demote")


class Policy:
    """The type of each listed operation inside an autocast region.

    * ``fp16``: runs in float16. * ``fp32``: runs in float32.
    * ``promote``: mixed operands become float32. * ``demote``: mixed operands become float16.

    >>> policy = Policy(fp16=[torch.matmul], fp32=[torch.nn.LayerNorm])
    >>> policy
    Policy(fp16=[matmul], fp32=[LayerNorm], promote=[], demote=[])
    """

    def __init__(
        self,
        fp16: Sequence[Any] | None = None,
        fp32: Sequence[Any] | None = None,
        promote: Sequence[Any] | None = None,
        demote: Sequence[Any] | None = None,
    ) -> None:
        self.fp16 = list(fp16 or ())
        self.fp32 = list(fp32 or ())
        self.promote = list(promote or ())
        self.demote = list(demote or ())

    def names(self) -> dict[str, list[str]]:
        """The plain names in each list: ``{"fp16": ["matmul"], …}``."""
        return {name: [_plain_name(entry) for entry in getattr(self, name)] for name in LISTS}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in LISTS)

    __hash__ = None  # type: ignore[assignment]  # the lists may change

    def __repr__(self) -> str:
        # Plain names: the repr of a function holds its address, and equal policies must print alike.
        lists = (f"{name}=[{', '.join(entries)}]" for name, entries in self.names().items())
        return f"Policy({', '.join(lists)})"


def _plain_name(entry: Any) -> str:
    return str(getattr(entry, "__name__", None) or entry)


default = Policy(
    fp16=[
        torch.addbmm,
        torch.addmm,
        torch.addmv,
        torch.addr,
        torch.baddbmm,
        torch.bmm,
        torch.chain_matmul,
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.conv_tbc,
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
        torch.convolution,
        torch.matmul,
        torch.mm,
        torch.mv,
        torch.nn.Conv2d,
    ],
    promote=[
        torch.addcdiv,
        torch.addcmul,
        torch.atan2,
        torch.bilinear,
        torch.cat,
        torch.cross,
        torch.dot,
        torch.equal,
        torch.index_put,
        torch.stack,
        torch.tensordot,
    ],
)
"""The policy of a new ``Options``: matrix products and convolutions in float16, mixed joins in float32."""
