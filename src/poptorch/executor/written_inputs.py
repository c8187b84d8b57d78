"""Arguments that ``forward`` changes in place: the caller sees it after the call, or hears why not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch.compiler.device_program import Interface
from poptorch.frames import warn_user
from poptorch.program.program import has_values


class WrittenInputs:
    """The written arguments of one program."""

    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self._written = interface.written_inputs
        self._said: set[tuple[int, ...]] = set()

    def check(self, given: Sequence[torch.Tensor]) -> None:
        """Refuse or mention arguments that share memory with a written one, before the call."""
        if not self._written:
            return
        self._interface.check_same(given)
        for index in self._written:
            for other, tensor in enumerate(given):
                if other != index and (index, other) not in self._said and _is_part(given[index], tensor):
                    self._said.add((index, other))
                    changed, kept = self._path(index), self._path(other)
                    warn_user(
                        f"forward() changes {changed} in place, and {kept} lies in a part of the same memory. The "
                        f"device has a copy of each, so that {kept} does not change within the call. Pass the tensor "
                        "that both are views of, and take the views in forward(); or pass a clone()."
                    )

    def give_back(self, given: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """After the call: what the program made of its copies goes to the arguments."""
        for index in self._written:
            original, used = given[index], inputs[index]
            if original is used:
                continue
            if original.is_contiguous():
                original.detach().copy_(used)
            elif (index,) not in self._said:
                self._said.add((index,))
                path = self._path(index)
                warn_user(
                    f"forward() changes {path} in place, but the argument is not contiguous: the program changes a "
                    f"copy, and the argument stays as it is. Pass {path}.contiguous(), or return the new values."
                )

    def _path(self, index: int) -> str:
        return self._interface.layout.specs[index].path


def _is_part(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have some memory in common, but not all; of those with gaps, nothing is said."""
    if not (has_values(first) and has_values(second) and first.is_contiguous() and second.is_contiguous()):
        return False
    begin, other = first.data_ptr(), second.data_ptr()
    end, other_end = begin + first.nbytes, other + second.nbytes
    return begin < other_end and other < end and (begin, end) != (other, other_end)
