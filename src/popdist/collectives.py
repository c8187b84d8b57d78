"""Operations on tensors of all instances, on the host.

The instances that take part are those of the running ``execute_on_instances``, or all. Operations with a name are
matched by it: several threads may have differently named ones under way, in a different order on each instance.
Operations without a name are matched by their order.

>>> import torch
>>> allReduceSum(torch.ones(2))
tensor([1., 1.])
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from typing import TYPE_CHECKING

from popdist import backend, context

if TYPE_CHECKING:
    import torch

__all__ = ["allGather", "allReduceSum", "broadcast"]


def allReduceSum(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Replace a tensor by its sum over the instances. The result has the same bits on each of them."""
    if str(tensor.dtype) == "torch.bool":
        raise TypeError("Truth values cannot be added: convert the tensor to a type for numbers first.")
    if backend.participants() > 1:
        parts = _gathered(tensor, name, "allReduceSum")
        total = parts[0]
        for part in parts[1:]:  # in the order of the instances, whatever came first
            total = total + part
        tensor.copy_(total)
    return tensor


def allGather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """The tensors of all instances, in their order, as one tensor with one more dimension in front.

    >>> import torch
    >>> allGather(torch.ones(2)).shape
    torch.Size([1, 2])
    """
    import torch

    if backend.participants() == 1:
        return tensor.detach().clone()[None]
    return torch.stack(_gathered(tensor, name, "allGather"))


def broadcast(tensor: torch.Tensor, root: int = 0, name: str | None = None) -> torch.Tensor:
    """Replace a tensor by that of instance ``root``."""
    if backend.participants() > 1:
        members = backend.group("popdist.collectives.broadcast").members
        if root not in members:
            raise ValueError(f"Instance {root} does not take part: {list(members)} do.")
        tensor.copy_(_gathered(tensor, name, "broadcast")[members.index(root)])
    elif root != context.getInstanceIndex():
        raise ValueError(f"Instance {root} does not take part: only this one, {context.getInstanceIndex()}, does.")
    return tensor


def close() -> None:
    """Count named operations anew, as connections will be new."""
    with _named.lock:
        _named.uses.clear()


def _gathered(tensor: torch.Tensor, name: str | None, operation: str) -> list[torch.Tensor]:
    """The tensors of all instances that take part. They travel as bytes, so their type does not matter."""
    import torch

    group = backend.group(f"popdist.collectives.{operation}")
    own = tensor.detach().to("cpu", copy=True).contiguous()
    if own.numel() == 0:
        return [own for _ in group.members]
    content = own.reshape(-1).view(torch.uint8)
    if name is None:
        parts = group.gather(content)
    else:
        parts = _named.gather(content, f"{operation}:{name}", group.members)
    return [part.view(own.dtype).reshape(own.shape) for part in parts]


class _Named:
    """Messages between each two instances, matched by a name. They have connections of their own: they must not meet
    the operations that are matched by order.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connecting: dict[tuple[int, ...], threading.Lock] = {}
        self.uses: Counter[str] = Counter()

    def gather(self, content: torch.Tensor, name: str, members: tuple[int, ...]) -> list[torch.Tensor]:
        """The contents of all members under one name."""
        import torch

        from poptorch.distributed import process_group
        from poptorch.errors import RecoverableError

        with self.lock:
            connecting = self.connecting.setdefault(members, threading.Lock())
            use = f"{name} of {members}"
            self.uses[use] += 1
            tag = zlib.crc32(f"{use} {self.uses[use]}".encode()) & 0x3FFFFFFF
        with connecting:  # other threads may connect other members meanwhile
            group = process_group.group_of(members, "named")
        parts = {group.process_id: content}
        try:
            pending = []
            for other in members:
                if other != group.process_id:
                    parts[other] = torch.empty_like(content)
                    pending += [group.send(content, other, tag), group.receive(parts[other], other, tag)]
            for message in pending:
                message.wait()
        except RecoverableError as error:
            raise backend.popdist_error(
                f"The operation {name!r} has failed: {error}. All instances have to take part in it, with tensors of "
                "one size; has one of them died?"
            ) from error
        return [parts[member] for member in members]


_named = _Named()
