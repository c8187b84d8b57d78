"""Data sets that the tests hand to other processes."""

from __future__ import annotations

import importlib
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import poptorch


class Numbers(Dataset[torch.Tensor]):
    """Item i is a tensor full of i."""

    def __init__(self, length: int, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> None:
        self._length, self._shape, self._dtype = length, shape, dtype

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self._length:
            raise IndexError(index)
        return torch.full(self._shape, index, dtype=self._dtype)


class WhetherImported(Dataset[torch.Tensor]):
    """Two items that say whether the process which loads them has imported a module."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self._module in sys.modules)


class MadeBy(Dataset[Any]):
    """Two items of a class whose module is imported when the first one is loaded."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return getattr(importlib.import_module(self._module), self._name)(torch.tensor(index))


class Labelled(Numbers):
    """Item i is (a tensor full of i, i)."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), index


class Named(Numbers):
    """Item i is a dictionary."""

    def __getitem__(self, index: int) -> Any:
        return {"value": super().__getitem__(index), "double": torch.tensor(2 * index)}


class WithoutEnd(Numbers):
    """Has a length and answers any index."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Stream(IterableDataset[torch.Tensor]):
    """The numbers first to last-1."""

    def __init__(self, last: int, dtype: torch.dtype = torch.float32) -> None:
        self.first, self.last, self._dtype = 0, last, dtype

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.first, self.last):
            yield torch.tensor(number, dtype=self._dtype)


class SizedStream(Stream):
    """The same with a length."""

    def __len__(self) -> int:
        return self.last - self.first


def give_each_worker_its_slice(worker: int) -> None:
    """Even slices, the last one shorter: 101 items and 7 workers give 15 each, and 11."""
    info = get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    first, last = dataset.first, dataset.last
    each = math.ceil((last - first) / info.num_workers)
    dataset.first = min(first + worker * each, last)
    dataset.last = min(dataset.first + each, last)


class Dynamic:
    """A batch sampler of micro-batches of one size whose number nobody can ask for."""

    def __init__(self, batches: int, size: int) -> None:
        self._batches, self._size = batches, size

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(self._batches):
            yield list(range(batch * self._size, (batch + 1) * self._size))


class DynamicNotImplemented(Dynamic):
    """The same, with a length that is not implemented."""

    def __len__(self) -> int:
        raise NotImplementedError


class Pair:
    """A type of the user's own."""

    def __init__(self, left: torch.Tensor, right: torch.Tensor) -> None:
        self.left, self.right = left, right


class PairParser(poptorch.ICustomArgParser):
    """Takes pairs apart."""

    def yieldTensors(self, struct: Pair) -> Iterator[torch.Tensor]:
        yield struct.left
        yield struct.right

    def reconstruct(self, original_structure: Pair, tensor_iterator: Iterator[torch.Tensor]) -> Pair:
        return Pair(next(tensor_iterator), next(tensor_iterator))


def collate_pairs(items: list[torch.Tensor]) -> Pair:
    """A batch as a pair: the values, and their negatives."""
    values = torch.stack(items)
    return Pair(values, -values)


# --- faults ----------------------------------------------------------------------------------------------------


class Broken(Numbers):
    """Raises at one item."""

    def __init__(self, length: int, at: int, error: type[Exception] = AssertionError) -> None:
        super().__init__(length)
        self._at, self._error = at, error

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self._at:
            raise self._error("Broken dataset")
        return super().__getitem__(index)


class Suicidal(Broken):
    """The process that loads one item is killed."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Hanging(Broken):
    """Never returns one item, and says on disk which process is stuck."""

    def __init__(self, length: int, at: int, mark: Path | None = None) -> None:
        super().__init__(length, at)
        self._mark = mark

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self._at:
            if self._mark is not None:
                self._mark.write_text(str(os.getpid()))
            time.sleep(3600)
        return Numbers.__getitem__(self, index)


class Stubborn(Hanging):
    """Hangs and ignores being interrupted."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self._at:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return super().__getitem__(index)


class Growing(Numbers):
    """Items become longer."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3 if index < 5 else 4)


class Retyped(Numbers):
    """Items change their type."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), index / 2, dtype=torch.float32 if index < 5 else torch.float64)


class WithGradient(Numbers):
    """Items require grad."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2, requires_grad=True)


class NotTensors(Numbers):
    """Items hold text."""

    def __getitem__(self, index: int) -> Any:
        return ["text", torch.zeros(1)]


class CannotBeUnpickled(Numbers):
    """Pickles, but cannot be read back."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise ValueError("I refuse to be unpickled")


class CannotBePickled(Numbers):
    """Refuses to be sent anywhere."""

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("I refuse to be pickled")
