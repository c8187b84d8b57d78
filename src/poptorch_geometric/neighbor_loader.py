"""Samples of the neighbourhood of some nodes of a large graph, as batches of fixed size."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler.base import SubgraphType

from poptorch.data.loader import DataLoader as CallLoader
from poptorch.options import Options
from poptorch_geometric.collate import CombinedBatchingCollater, FixedSizeCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.neighbor_sampling import TorchNeighborSampler, has_library
from poptorch_geometric.strategies import OverSizeStrategy

__all__ = ["FixedSizeNeighborLoader", "PyGFixedSizeNeighborLoader"]

_KNOWN_TO_TORCH = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters) - {"self"}
_OF_OUTER = frozenset({"dataset", "collate_fn", "batch_sampler", "sampler", "num_workers", "persistent_workers"})


class PyGFixedSizeNeighborLoader(torch.utils.data.DataLoader[Any]):
    """PyG's neighbour loader, padded, for plain PyTorch. The seeds are the first nodes of every micro-batch."""

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Any = None,
        replace: bool = False,
        directed: bool = True,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool = True,
        subgraph_type: Any = SubgraphType.directional,
        batch_size: int = 1,
        neighbor_sampler: Any = None,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        fixed_size_options: FixedSizeOptions | None = None,
        add_pad_masks: bool = False,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        assert "collate_fn" not in kwargs, (
            f"Cannot set `collate_fn` of a {type(self).__name__}: override _create_collater instead."
        )
        if neighbor_sampler is None and not has_library():
            neighbor_sampler = TorchNeighborSampler(
                data,
                num_neighbors,
                replace,
                SubgraphType(subgraph_type) if directed else SubgraphType.induced,
                disjoint,
                time_attr,
            )
        former = {} if directed else {"directed": False}
        self.neighbour_loader = NeighborLoader(
            data,
            num_neighbors=num_neighbors,
            input_nodes=input_nodes,
            input_time=input_time,
            replace=replace,
            subgraph_type=subgraph_type,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            is_sorted=is_sorted,
            filter_per_worker=True,
            neighbor_sampler=neighbor_sampler,
            batch_size=batch_size,
            **former,
            **{name: value for name, value in kwargs.items() if name in _KNOWN_TO_TORCH - _OF_OUTER},
        )
        self.input_type = self.neighbour_loader.input_data.input_type
        if fixed_size_options is None:
            fixed_size_options = FixedSizeOptions.from_loader(self.neighbour_loader)
        if isinstance(data, HeteroData) and not fixed_size_options.is_hetero():
            fixed_size_options.to_hetero(data.node_types, data.edge_types)
        self.fixed_size_options = fixed_size_options
        self._seeds = batch_size
        collater = self._create_collater(
            fixed_size_options=fixed_size_options,
            add_masks_to_batch=add_pad_masks,
            trim_nodes=over_size_strategy.trims_nodes,
            trim_edges=over_size_strategy.trims_edges,
            follow_batch=follow_batch,
            exclude_keys=exclude_keys,
        )
        self._sampled = _SampledCollater(self.neighbour_loader, collater, self.input_type)
        super().__init__(
            dataset=self.neighbour_loader.dataset,
            batch_size=batch_size,
            collate_fn=self._wrapped(self._sampled),
            **kwargs,
        )

    def _create_collater(self, **collater_args: Any) -> Any:
        """What pads a sample; to be overridden."""
        return FixedSizeCollater(**collater_args)

    def _wrapped(self, collater: Any) -> Any:
        """The collate function of the loader, which gets positions in the input nodes."""
        return collater

    def nativeCollate(self, index: Any) -> Any:
        """PyG's mini-batch, of any size, around the input nodes at these positions."""
        return self._sampled.sample(index)

    def fixedSizeCollate(self, graph: Any) -> Any:
        """A mini-batch of PyG's, padded or trimmed. Its seeds are never left out."""
        return self._sampled.pad(graph)


class _SampledCollater:
    """Samples around some seeds, and pads the sample."""

    def __init__(self, loader: Any, collater: Any, input_type: Any) -> None:
        self._loader = loader
        self.collater = collater
        self._input_type = input_type

    def __call__(self, index: list[int]) -> Any:
        """The padded batch of the input nodes at these positions."""
        return self.pad(self.sample(index))

    def sample(self, index: Any) -> Any:
        """PyG's mini-batch."""
        return self._loader(index)

    def pad(self, graph: Any) -> Any:
        """That mini-batch in its fixed size; what PyG notes about the seeds stays as it is."""
        graph = copy.copy(graph)
        store = self._store(graph)
        notes = {name: store[name] for name in ("batch_size", "input_id") if name in store}
        for name in notes:
            del store[name]
        for part in graph.stores:  # the seed of each node, in disjoint samples: its place is taken
            if "batch" in part:
                del part["batch"]
        keeping = getattr(self.collater, "collate_first_kept", None)
        seeds = {self._input_type: int(notes.get("batch_size", 0))}
        batch = self.collater([graph]) if keeping is None else keeping([graph], seeds)
        self._store(batch)._mapping.update(notes)
        return batch

    def _store(self, graph: Any) -> Any:
        return graph._store if self._input_type is None else graph[self._input_type]


class FixedSizeNeighborLoader(PyGFixedSizeNeighborLoader, CallLoader):
    """For wrapped models: each batch has as many padded samples as one call of a model consumes."""

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Any = None,
        subgraph_type: Any = SubgraphType.directional,
        replace: bool = False,
        directed: bool = True,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool = True,
        batch_size: int = 1,
        neighbor_sampler: Any = None,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        fixed_size_options: FixedSizeOptions | None = None,
        add_pad_masks: bool = True,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        options: Options | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            data,
            num_neighbors,
            input_nodes,
            input_time,
            replace=replace,
            directed=directed,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            is_sorted=is_sorted,
            subgraph_type=subgraph_type,
            batch_size=batch_size,
            neighbor_sampler=neighbor_sampler,
            over_size_strategy=over_size_strategy,
            fixed_size_options=fixed_size_options,
            add_pad_masks=add_pad_masks,
            follow_batch=follow_batch,
            exclude_keys=exclude_keys,
            options=Options() if options is None else options,
            **kwargs,
        )

    def _wrapped(self, collater: Any) -> Any:
        return CombinedBatchingCollater(super()._wrapped(collater), self._seeds)
