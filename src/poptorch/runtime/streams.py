"""What comes back from a call: blocks of output gathered as the output mode asks."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from poptorch.enums import OutputMode
from poptorch.program.loop import Loop, MicroBatch


class OutputStream:
    """Collects one output over the micro-batches of a call, into memory that is new for each call."""

    def __init__(self, loop: Loop, mode: OutputMode | None = None, period: int | None = None) -> None:
        self._loop = loop
        self._mode = loop.output_mode if mode is None else mode
        self._period = loop.return_period if mode is None else (period or 1)
        self._multiplicity = loop.multiplicity(self._mode, self._period)
        self._alone = self._multiplicity == 1 and self._mode is not OutputMode.Sum
        self._sums = self._mode is OutputMode.Sum
        self._whole: torch.Tensor | None = None
        self._early: dict[tuple[int, int], torch.Tensor] = {}
        self._added: dict[int, int] = {}
        self._lock = threading.Lock()

    def put(self, micro_batch: MicroBatch, value: torch.Tensor) -> None:
        """Take the value that one micro-batch produced."""
        block = self._loop.output_block(micro_batch, self._mode, self._period)
        if block is None:
            if self._multiplicity == 0:  # the return period is longer than the call
                self._whole = _blocks(value, 0)
            return
        if self._alone:
            self._whole = value
            return
        if self._whole is None:
            with self._lock:  # replicas may deliver at the same time
                if self._whole is None:
                    self._whole = _blocks(value, self._multiplicity, self._type(value.dtype))
        if self._sums:
            self._add(self._whole, block, self._loop.position(micro_batch), value)
        else:
            _block(self._whole, value, block, self._multiplicity).copy_(value)

    def put_all(self, members: Sequence[MicroBatch], value: torch.Tensor) -> None:
        """Take what a group of micro-batches produced; of several, each has its place in the first dimension."""
        if len(members) == 1:
            self.put(members[0], value)
            return
        if self._multiplicity == 0:
            self.put(members[0], value[0])
            return
        for micro_batch, part in zip(members, value.unbind(), strict=True):
            if self._loop.output_block(micro_batch, self._mode, self._period) is not None:
                self.put(micro_batch, part.clone(memory_format=torch.contiguous_format) if self._alone else part)

    def _add(self, whole: torch.Tensor, block: int, position: int, value: torch.Tensor) -> None:
        """Add to one block, in the order of the micro-batches: early ones, made by other workers, wait."""
        with self._lock:
            self._early[block, position] = value
            upcoming = self._added.get(block, 0)
            while (ready := self._early.pop((block, upcoming), None)) is not None:
                target = _block(whole, ready, block, self._multiplicity)
                target.add_(ready) if upcoming else target.copy_(ready)
                upcoming += 1
            self._added[block] = upcoming

    def room(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory for what another process gathers, of values with this shape."""
        return _blocks(torch.empty(tuple(shape), dtype=dtype), self._multiplicity, self._type(dtype))

    def _type(self, dtype: torch.dtype) -> torch.dtype:
        """What holds the values. Truths are counted, and sums of small integers do not wrap, as in ``torch.sum``."""
        return type_of_sum(dtype) if self._sums else dtype

    def take(self) -> torch.Tensor:
        """The gathered output; the stream is empty afterwards."""
        whole, self._whole = self._whole, None
        assert whole is not None
        assert not self._early, f"{len(self._early)} outputs were never added"
        self._added.clear()
        return whole


def type_of_sum(dtype: torch.dtype) -> torch.dtype:
    """The type of sums over micro-batches.

    >>> type_of_sum(torch.bool), type_of_sum(torch.float16)
    (torch.int32, torch.float16)
    """
    return torch.int32 if dtype in (torch.bool, torch.uint8, torch.int8, torch.int16) else dtype


def _blocks(value: torch.Tensor, count: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    if count == 1:
        return torch.empty_like(value, dtype=dtype)
    shape = (count, *value.shape[1:]) if value.ndim == 0 else (count * value.shape[0], *value.shape[1:])
    return torch.empty(shape, dtype=value.dtype if dtype is None else dtype)


def _block(whole: torch.Tensor, value: torch.Tensor, index: int, count: int) -> torch.Tensor:
    if count == 1:
        return whole
    if value.ndim == 0:
        return whole[index]
    rows = value.shape[0]
    return whole.narrow(0, index * rows, rows)
