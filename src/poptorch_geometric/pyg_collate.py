"""PyG's collater, with every argument optional."""

from __future__ import annotations

import inspect
from typing import Any

from torch_geometric.loader.dataloader import Collater as _PyGCollater

_TAKES_DATASET = "dataset" in inspect.signature(_PyGCollater.__init__).parameters


class Collater(_PyGCollater):
    """Joins graphs into one batch, as PyG does."""

    def __init__(self, follow_batch: list[str] | None = None, exclude_keys: list[str] | None = None) -> None:
        follow, excluded = list(follow_batch or []), list(exclude_keys or [])
        super().__init__(*([[]] if _TAKES_DATASET else []), follow, excluded)

    def collate(self, batch: Any) -> Any:
        """The name that PyG used before."""
        return self(batch)
