"""Loaders of graphs for plain PyTorch: as PyG's, and with batches of fixed size."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler
from torch_geometric.data import HeteroData

from poptorch_geometric.collate import FixedSizeCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.former import FormerArguments
from poptorch_geometric.pyg_collate import Collater
from poptorch_geometric.skipping import SkippingCollater
from poptorch_geometric.strategies import FixedSizeStrategy, OverSizeStrategy
from poptorch_geometric.stream_packing_sampler import StreamPackingSampler

__all__ = ["CustomFixedSizeDataLoader", "DataLoader", "FixedSizeDataLoader", "FixedSizeStrategy", "OverSizeStrategy"]


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Joins graphs into batches, as PyG's loader does."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.follow_batch = follow_batch
        self.exclude_keys = exclude_keys
        self._num_graphs = batch_size
        kwargs.pop("collate_fn", None)
        super().__init__(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            collate_fn=self._create_collater(follow_batch=follow_batch, exclude_keys=exclude_keys),
            **kwargs,
        )

    def _create_collater(self, **collater_args: Any) -> Any:
        """What joins graphs; to be overridden."""
        return Collater(**collater_args)


class FixedSizeDataLoader(torch.utils.data.DataLoader[Any]):
    """Yields batches of fixed size: ``batch_size`` graphs, the padding graphs among them.

    >>> from torch_geometric.data import Data
    >>> graphs = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]])) for _ in range(4)]
    >>> [batch.num_nodes for batch in FixedSizeDataLoader(graphs, batch_size=3)]
    [5, 5]
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
        **kwargs: Any,
    ) -> None:
        assert "collate_fn" not in kwargs, (
            f"Cannot set `collate_fn` of a {type(self).__name__}: override _create_collater instead."
        )
        former = FormerArguments.taken_from(kwargs, dataset, batch_size)
        collater_args: dict[str, Any] = {}
        if former is not None:
            fixed_size_options, add_pad_masks = former.options, former.adds_masks
            fixed_size_strategy = FixedSizeStrategy.StreamPack
            over_size_strategy = former.over_size
            shuffle = former.sampler is None
        options = fixed_size_options
        if options is None:
            options = FixedSizeOptions.from_dataset(dataset, batch_size)
        first = dataset[0]
        if isinstance(first, HeteroData) and not options.is_hetero():
            options.to_hetero(first.node_types, first.edge_types)
        assert batch_size == options.num_graphs, (
            f"`num_graphs` in fixed size options must match the batch size: it is {options.num_graphs}, and batch_size "
            f"is {batch_size}."
        )
        self.fixed_size_options = options
        self.padded_batch_size = batch_size
        self._skips = over_size_strategy is OverSizeStrategy.Skip and fixed_size_strategy is FixedSizeStrategy.PadToMax
        self._mini_batch_size: int | None = None
        collater = self._create_collater(
            fixed_size_options=options,
            add_masks_to_batch=add_pad_masks,
            trim_nodes=over_size_strategy.trims_nodes,
            trim_edges=over_size_strategy.trims_edges,
            follow_batch=follow_batch,
            exclude_keys=exclude_keys,
            **collater_args,
        )
        how = self._sampling(dataset, shuffle, fixed_size_strategy, over_size_strategy, former, kwargs)
        super().__init__(dataset=dataset, collate_fn=self._wrapped(collater, how, kwargs), **how, **kwargs)

    def _create_collater(self, **collater_args: Any) -> Any:
        """What makes a batch of fixed size; to be overridden."""
        collater = FixedSizeCollater(**collater_args)
        return SkippingCollater(collater) if self._skips else collater

    def _wrapped(self, collater: Any, how: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        """The collate function of the whole loader."""
        return collater

    def _sampling(
        self,
        dataset: Any,
        shuffle: bool,
        strategy: FixedSizeStrategy,
        over_size: OverSizeStrategy,
        former: FormerArguments | None,
        kwargs: dict[str, Any],
    ) -> dict[str, Any]:
        """The arguments of torch's loader that decide about the indices of a batch."""
        options = self.fixed_size_options
        if strategy is FixedSizeStrategy.StreamPack:
            if "batch_sampler" in kwargs:
                raise ValueError(
                    "FixedSizeStrategy.StreamPack is incompatible with the provided batch_sampler: it makes its own. "
                    "Leave out one of them."
                )
            base = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
            if former is not None and former.sampler is not None:
                base = former.sampler
            sampler = StreamPackingSampler(
                dataset,
                options.num_graphs - 1,
                max_num_nodes=options.total_num_nodes - 1,
                max_num_edges=options.total_num_edges - 1,
                base_sampler=base,
                allow_skip_data=over_size is OverSizeStrategy.Skip,
            )
            sampler._trims = over_size.trims_nodes or over_size.trims_edges
            return {"batch_sampler": sampler}
        if strategy is not FixedSizeStrategy.PadToMax:
            raise NotImplementedError(f"{strategy} is not a supported strategy: use one of {list(FixedSizeStrategy)}.")
        if kwargs.get("batch_sampler") is not None:
            return {"batch_sampler": kwargs.pop("batch_sampler")}
        self._mini_batch_size = options.num_graphs - 1
        return {"batch_size": self._mini_batch_size, "shuffle": shuffle}


class CustomFixedSizeDataLoader(FixedSizeDataLoader):
    """The loader of release 3.2 that pads every micro-batch to the same number of graphs."""

    def __init__(
        self,
        dataset: Any,
        num_nodes: int | None = None,
        batch_size: int | None = None,
        batch_sampler: Any = None,
        shuffle: bool = False,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        collater_args: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        settings = FormerArguments.padded(dataset, num_nodes, batch_size, batch_sampler, collater_args)
        if batch_sampler is not None:
            kwargs["batch_sampler"] = batch_sampler
        super().__init__(
            dataset,
            batch_size=settings.options.num_graphs,
            shuffle=shuffle,
            fixed_size_options=settings.options,
            over_size_strategy=settings.over_size,
            add_pad_masks=settings.adds_masks,
            follow_batch=follow_batch,
            exclude_keys=exclude_keys,
            **kwargs,
        )
