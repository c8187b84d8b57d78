"""Sampling neighbours with PyTorch alone, where PyG has no library for it."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.typing
from torch_geometric.data import HeteroData
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, NumNeighbors, SamplerOutput
from torch_geometric.sampler.base import SubgraphType

_ONE = (None, None, None)
"""The only type of edges of a graph without types."""


def has_library() -> bool:
    """Whether PyG can sample neighbours itself."""
    return bool(torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE)


class TorchNeighborSampler(BaseSampler):
    """Seeds first, in order; then, hop by hop, up to so many incoming neighbours of the nodes found last.

    Each node is there once, in the order of its discovery. ``edge`` numbers the edges of the whole graph.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        time_attr: str | None = None,
        weight_attr: str | None = None,
    ) -> None:
        if time_attr is not None or weight_attr is not None:
            raise NotImplementedError(
                "Temporal and weighted sampling need pyg-lib: install it, or leave out time_attr and weight_attr."
            )
        self._is_hetero = isinstance(data, HeteroData)
        if self._is_hetero:
            self._edges = {kind: data[kind].edge_index for kind in data.edge_types}
            self._sizes = {kind: data[kind].num_nodes for kind in data.node_types}
        else:
            self._edges, self._sizes = {_ONE: data.edge_index}, {None: data.num_nodes}
        neighbors = num_neighbors if isinstance(num_neighbors, NumNeighbors) else NumNeighbors(num_neighbors)
        if self._is_hetero:
            self._counts = dict(neighbors.get_values(list(self._edges)))
        else:
            self._counts = {_ONE: neighbors.get_values()}
        self._hops = int(neighbors.num_hops)
        self._replace = replace
        self._subgraph_type = SubgraphType(subgraph_type)
        self._disjoint = disjoint
        self._incoming = {kind: _Incoming(index, self._sizes[kind[2]]) for kind, index in self._edges.items()}

    @property
    def edge_permutation(self) -> None:
        """Edges are numbered as in the data."""
        return None

    def sample_from_nodes(self, inputs: Any, **kwargs: Any) -> Any:
        """The part of the graph around some nodes."""
        seeds, input_type = inputs.node, getattr(inputs, "input_type", None)
        nodes = {kind: torch.zeros(0, dtype=torch.int64) for kind in self._sizes}
        nodes[input_type] = self._numbered(seeds, self._sizes[input_type])
        frontier = dict(nodes)
        found: dict[Any, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {kind: [] for kind in self._edges}
        for hop in range(self._hops):
            before = {kind: len(known) for kind, known in nodes.items()}
            for kind, incoming in self._incoming.items():
                source, _, target = kind
                middle = frontier[target]
                place, sources, edges = incoming.choose(
                    middle % self._sizes[target], self._counts[kind][hop], self._replace
                )
                if self._disjoint:
                    sources = sources + middle[place] // self._sizes[target] * self._sizes[source]
                nodes[source] = _first_ones(torch.cat([nodes[source], sources]))
                found[kind].append((sources, middle[place], edges))
            frontier = {kind: known[before[kind] :] for kind, known in nodes.items()}
        return self._output(inputs, nodes, found)

    def sample_from_edges(self, inputs: Any, neg_sampling: Any = None) -> Any:
        """Not possible here."""
        raise NotImplementedError("Sampling around edges needs pyg-lib: install it, or sample around nodes.")

    def _numbered(self, seeds: torch.Tensor, size: int) -> torch.Tensor:
        """Seeds; in disjoint samples a node is another one for each seed."""
        if self._disjoint:
            return seeds + size * torch.arange(len(seeds))
        return _first_ones(seeds)

    def _output(self, inputs: Any, nodes: dict[Any, torch.Tensor], found: dict[Any, Any]) -> Any:
        rows, cols, edges = {}, {}, {}
        for kind, parts in found.items():
            sources, targets, numbers = (torch.cat(column) for column in zip(*parts, strict=True))
            if self._subgraph_type is SubgraphType.induced:
                sources, targets, numbers = self._induced(kind, nodes)
            rows[kind] = _positions(nodes[kind[0]], sources)
            cols[kind] = _positions(nodes[kind[2]], targets)
            # An edge that is there for its reverse has no number.
            edges[kind] = None if self._subgraph_type is SubgraphType.bidirectional else numbers
        batch = {k: known // self._sizes[k] for k, known in nodes.items()} if self._disjoint else None
        plain = {kind: known % max(self._sizes[kind], 1) for kind, known in nodes.items()}
        metadata = (inputs.input_id, inputs.time)
        output: Any
        if self._is_hetero:
            output = HeteroSamplerOutput(plain, rows, cols, edges, batch, metadata=metadata)
        else:
            output = SamplerOutput(
                plain[None], rows[_ONE], cols[_ONE], edges[_ONE], batch[None] if batch else None, metadata=metadata
            )
        return output.to_bidirectional() if self._subgraph_type is SubgraphType.bidirectional else output

    def _induced(self, kind: Any, nodes: dict[Any, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All edges between the nodes."""
        source, _, target = kind
        middle = nodes[target]
        place, sources, edges = self._incoming[kind].choose(middle % self._sizes[target], -1, False)
        if self._disjoint:
            sources = sources + middle[place] // self._sizes[target] * self._sizes[source]
        inside = torch.isin(sources, nodes[source])
        return sources[inside], middle[place][inside], edges[inside]


class _Incoming:
    """The edges of one type by their target."""

    def __init__(self, edge_index: torch.Tensor, num_targets: int) -> None:
        source, target = edge_index
        self._order = target.argsort(stable=True)
        self._sources = source[self._order]
        self._starts = torch.zeros(num_targets + 1, dtype=torch.int64)
        self._starts[1:] = torch.bincount(target, minlength=num_targets).cumsum(0)

    def choose(
        self, targets: torch.Tensor, count: int, replace: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Up to ``count`` edges into each target (-1: all): the target's position, the source, the edge's number."""
        starts, degrees = self._starts[targets], self._starts[targets + 1] - self._starts[targets]
        if replace and count >= 0:
            able = (degrees > 0).nonzero().flatten().repeat_interleave(count)
            slots = starts[able] + (torch.rand(len(able)) * degrees[able]).long()
            return able, self._sources[slots], self._order[slots]
        place = torch.arange(len(targets)).repeat_interleave(degrees)
        first = degrees.cumsum(0) - degrees
        rank = torch.arange(len(place)) - first[place]
        slots = starts[place] + rank
        if count >= 0:
            # In a random order within each target, the first ones stay; then in the order of before.
            shuffled = torch.rand(len(place)).argsort()
            shuffled = shuffled[place[shuffled].argsort(stable=True)]
            kept = shuffled[rank < count].sort().values
            place, slots = place[kept], slots[kept]
        return place, self._sources[slots], self._order[slots]


def _first_ones(values: torch.Tensor) -> torch.Tensor:
    """Every value once, in the order in which they come.

    >>> _first_ones(torch.tensor([5, 3, 5, 1])).tolist()
    [5, 3, 1]
    """
    found, inverse = values.unique(return_inverse=True)
    first = torch.full((len(found),), len(values)).scatter_reduce(0, inverse, torch.arange(len(values)), "amin")
    return values[first.sort().values]


def _positions(known: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Where each value is among different ones."""
    ordered, order = known.sort()
    return order[torch.searchsorted(ordered, values)]
