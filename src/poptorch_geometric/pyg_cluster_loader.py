"""Clusters of a large graph as batches of fixed size, for plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.loader import ClusterLoader

from poptorch_geometric.collate import FixedSizeCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.former import options_of, trimming_of
from poptorch_geometric.strategies import OverSizeStrategy

__all__ = ["FixedSizeClusterLoader"]


class _ClusterCollater:
    """Makes one graph of some clusters, as PyG does, and pads it."""

    def __init__(self, cluster_data: Any, collater: Any) -> None:
        self.cluster_data = cluster_data
        self.collater = collater

    def __call__(self, clusters: list[int]) -> Any:
        """The padded batch of the clusters with these numbers."""
        name = "_collate" if hasattr(ClusterLoader, "_collate") else "__collate__"
        graph = getattr(ClusterLoader, name)(_Merging(self.cluster_data), list(clusters))
        return self.collater([graph])


class _Merging:
    """As much of PyG's loader as its collate function looks at."""

    def __init__(self, cluster_data: Any) -> None:
        self.cluster_data = cluster_data


class FixedSizeClusterLoader(torch.utils.data.DataLoader[Any]):
    """Yields some clusters as one graph, padded; ``batch_size`` is the number of clusters."""

    def __init__(
        self,
        cluster_data: Any,
        fixed_size_options: FixedSizeOptions | int | None = None,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool = True,
        **kwargs: Any,
    ) -> None:
        refused = [name for name in _REFUSED if name in kwargs]
        assert not refused, (
            f"{type(self).__name__} does not support the following arguments: {refused}. Leave them out."
        )
        if not isinstance(fixed_size_options, FixedSizeOptions):
            fixed_size_options, over_size_strategy, add_pad_masks = _former(fixed_size_options, kwargs)
        assert fixed_size_options.num_graphs == 2, (
            f"`num_graphs` in fixed size options must be 2 when using {type(self).__name__}: the clusters, which are "
            f"one graph, and the padding. It is {fixed_size_options.num_graphs}."
        )
        self.cluster_data = cluster_data
        self.fixed_size_options = fixed_size_options
        self._clusters = batch_size
        collater = self._create_collater(
            fixed_size_options=fixed_size_options,
            add_masks_to_batch=add_pad_masks,
            trim_nodes=over_size_strategy.trims_nodes,
            trim_edges=over_size_strategy.trims_edges,
        )
        super().__init__(
            dataset=range(len(cluster_data)),  # type: ignore[arg-type]
            batch_size=batch_size,
            collate_fn=self._wrapped(collater),
            **kwargs,
        )

    def _create_collater(self, **collater_args: Any) -> Any:
        """What pads the graph of a micro-batch; to be overridden."""
        return FixedSizeCollater(**collater_args)

    def _wrapped(self, collater: Any) -> Any:
        """The collate function of the loader, which gets numbers of clusters."""
        return _ClusterCollater(self.cluster_data, collater)


_REFUSED = ("collate_fn", "batch_sampler", "exclude_keys")


def _former(num_nodes: Any, kwargs: dict[str, Any]) -> tuple[FixedSizeOptions, OverSizeStrategy, bool]:
    """The arguments of release 3.2: a number of nodes, and those of the collater."""
    args = dict(kwargs.pop("collater_args", None) or {})
    sizes = kwargs.pop("num_nodes", None) if num_nodes is None else num_nodes
    if sizes is None:
        raise TypeError("fixed_size_options is missing: how large a micro-batch is must be known.")
    return options_of(sizes, 2, args), trimming_of(args), args.get("add_masks_to_batch", False)
