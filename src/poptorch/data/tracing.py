"""Trace points around item access, for runs with ``PVTI_OPTIONS``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from poptorch import profiling
from poptorch.profiling import channel


class TracedDataset(Dataset[Any]):
    """A map-style data set whose item access is recorded under the channel ``dataset``."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._channel = profiling.Channel("dataset")

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        with self._channel.tracepoint("__getitem__"):
            return self._dataset[index]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """A whole batch at once, in one call if the data set can do that."""
        if not callable(batched := getattr(self._dataset, "__getitems__", None)):
            return [self[index] for index in indices]
        with self._channel.tracepoint("__getitems__"):
            return list(batched(indices))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_dataset", "_channel"):  # asked for while being unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)


def traced(dataset: Any) -> Any:
    """``dataset`` itself, or its traced form while profiling is on.

    >>> traced([1, 2])
    [1, 2]
    """
    return TracedDataset(dataset) if channel.enabled else dataset
