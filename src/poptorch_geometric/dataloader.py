"""Loaders of graphs for wrapped models: each batch is what one call consumes."""

from __future__ import annotations

from typing import Any

from poptorch.data.loader import DataLoader as CallLoader
from poptorch.data.plan import batch_factor
from poptorch.options import Options
from poptorch_geometric import pyg_dataloader
from poptorch_geometric.collate import CombinedBatchingCollater
from poptorch_geometric.filling import FillingCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.strategies import FixedSizeStrategy, OverSizeStrategy

__all__ = [
    "CombinedBatchingCollater",
    "CustomFixedSizeDataLoader",
    "DataLoader",
    "FixedSizeDataLoader",
    "FixedSizeOptions",
    "FixedSizeStrategy",
    "OverSizeStrategy",
]


class DataLoader(pyg_dataloader.DataLoader, CallLoader):
    """PyG's loader: several mini-batches of ``batch_size`` graphs for each call. Nothing is padded."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        options: Options | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            follow_batch,
            exclude_keys,
            options=Options() if options is None else options,
            **kwargs,
        )

    def _create_collater(self, **collater_args: Any) -> Any:
        return CombinedBatchingCollater(super()._create_collater(**collater_args), self._num_graphs)


class FixedSizeDataLoader(pyg_dataloader.FixedSizeDataLoader, CallLoader):
    """Micro-batches of fixed size, as many in each batch as one call of a model with the same options consumes.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> graphs = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]])) for _ in range(8)]
    >>> options = Options().deviceIterations(2)
    >>> [batch.x.shape[0] for batch in FixedSizeDataLoader(graphs, batch_size=3, options=options)]
    [10, 10]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 2,
        shuffle: bool = False,
        fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy = FixedSizeStrategy.PadToMax,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error,
        add_pad_masks: bool = True,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        options: Options | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            fixed_size_options,
            fixed_size_strategy,
            over_size_strategy,
            add_pad_masks,
            follow_batch,
            exclude_keys,
            options=Options() if options is None else options,
            **kwargs,
        )

    def _create_collater(self, **collater_args: Any) -> Any:
        return CombinedBatchingCollater(super()._create_collater(**collater_args))

    def _wrapped(self, collater: Any, how: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        if self._mini_batch_size is None:
            return collater
        if isinstance(collater, CombinedBatchingCollater):
            collater.mini_batch_size = self._mini_batch_size
        if kwargs.get("drop_last", True):
            return collater
        return FillingCollater(collater, batch_factor(kwargs["options"]))


class CustomFixedSizeDataLoader(pyg_dataloader.CustomFixedSizeDataLoader, FixedSizeDataLoader):
    """The loader of release 3.2 that pads every micro-batch to the same number of graphs."""
