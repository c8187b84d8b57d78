"""Tensors of the user that share memory. The device has a copy of each, so a change of one is not seen in others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from poptorch.capture.state import StateEntry
from poptorch.errors import createPoptorchError
from poptorch.program.opinfo import SourceLocation
from poptorch.program.program import has_values


def check_memory(
    entries: Sequence[StateEntry],
    changed: Collection[int],
    constants: Sequence[tuple[torch.Tensor, SourceLocation | None]],
) -> None:
    """Refuse state that the program changes and that something else in it is a view of.

    ``changed`` are the places among the entries of what is trained or written; ``constants`` are tensors that
    ``forward`` uses and that are no part of the state, with the first line that does so.
    """
    with torch._C.DisableTorchFunctionSubclass():
        tensors = [entry.tensor.detach() for entry in entries] + [tensor.detach() for tensor, _ in constants]
        for one, other in _overlapping(tensors):
            if one not in changed and other not in changed:
                continue
            entry = entries[one]
            what = f"{entry.kind.value} {entry.name}"
            if other < len(entries):
                raise createPoptorchError(
                    f"{what} and {entries[other].kind.value.lower()} {entries[other].name} share memory, and the "
                    "program changes one of them. On the device each has memory of its own, so the change would not be "
                    "seen in the other. Keep one of them and compute the other from it in forward(), or give it memory "
                    "of its own: tensor.clone()."
                )
            line = constants[other - len(entries)][1]
            raise createPoptorchError(
                f"forward() uses a tensor{'' if line is None else f' at {line}'} that shares memory with "
                f"{what[0].lower()}{what[1:]} without being part of the model's state: a plain attribute, or an "
                f"element of a list. It is a constant of the program, so it would not change when {entry.name} does. "
                f"Use {entry.name} itself, an nn.ParameterList for lists, or give the tensor memory of its own: "
                "tensor.clone()."
            )


def _overlapping(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """The places of tensors that have elements in common."""
    by_storage: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor.layout is torch.strided and has_values(tensor) and tensor.numel():
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(place)
    for places in by_storage.values():
        for index, one in enumerate(places):
            for other in places[index + 1 :]:
                if _overlap(tensors[one], tensors[other]):
                    yield one, other


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    (first, end), (first_of_other, end_of_other) = _range(one), _range(other)
    if end <= first_of_other or end_of_other <= first:
        return False
    if one.dtype != other.dtype or (one.is_contiguous() and other.is_contiguous()):
        return True
    # Rows or columns of one tensor may lie between those of another.
    begin = int(min(one.storage_offset(), other.storage_offset()))
    taken = torch.zeros(max(end, end_of_other) // one.itemsize - begin, dtype=torch.bool)
    _as(one, taken, begin).fill_(True)
    return bool(_as(other, taken, begin).any())


def _as(tensor: torch.Tensor, memory: torch.Tensor, begin: int) -> torch.Tensor:
    return memory.as_strided(tensor.shape, tensor.stride(), int(tensor.storage_offset()) - begin)


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte in the storage, and the first one after all elements."""
    last = sum((size - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = int(tensor.storage_offset())
    return begin * tensor.itemsize, (begin + last + 1) * tensor.itemsize
