"""Clusters of a large graph for wrapped models."""

from __future__ import annotations

from typing import Any

from poptorch.data.loader import DataLoader as CallLoader
from poptorch.options import Options
from poptorch_geometric import pyg_cluster_loader
from poptorch_geometric.collate import CombinedBatchingCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.strategies import OverSizeStrategy

__all__ = ["FixedSizeClusterLoader"]


class FixedSizeClusterLoader(pyg_cluster_loader.FixedSizeClusterLoader, CallLoader):
    """``batch_size`` clusters are a micro-batch; each batch has as many as one call of a model consumes."""

    def __init__(
        self,
        cluster_data: Any,
        fixed_size_options: FixedSizeOptions | int | None = None,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool = True,
        options: Options | None = None,
        **kwargs: Any,
    ) -> None:
        options = Options() if options is None else options
        if options._strict_compatibility:
            assert "shuffle" not in kwargs, (
                "FixedSizeClusterLoader does not support the following arguments: ['shuffle'] with "
                "strictCompatibility(True)."
            )
        super().__init__(
            cluster_data, fixed_size_options, batch_size, over_size_strategy, add_pad_masks, options=options, **kwargs
        )

    def _wrapped(self, collater: Any) -> Any:
        return CombinedBatchingCollater(super()._wrapped(collater), self._clusters)
