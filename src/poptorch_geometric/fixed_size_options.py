"""``FixedSizeOptions``: how large the micro-batches of graphs are, and what they are filled up with."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from torch_geometric.data import HeteroData

Sizes = int | dict[Any, int]


def validate_num_graphs(num_graphs: int) -> None:
    """Refuse batches with no room for a padding graph beside a real one."""
    if num_graphs < 2:
        raise ValueError(
            f"The number of graphs in the batch must be at least 2, one of them for padding, but it is {num_graphs}."
        )


class FixedSizeOptions:
    """Sizes of a padded micro-batch, padding included, and the values of what is padded.

    ``num_nodes`` and ``num_edges`` are numbers, or dictionaries by type for graphs of several types. Attributes may be
    changed later.

    >>> FixedSizeOptions(num_nodes=10).num_edges
    90
    """

    def __init__(
        self,
        num_nodes: Sizes,
        num_edges: Sizes | None = None,
        num_graphs: int = 2,
        node_pad_value: Any = None,
        edge_pad_value: Any = None,
        graph_pad_value: float | None = None,
        pad_graph_defaults: dict[str, Any] | None = None,
    ) -> None:
        validate_num_graphs(num_graphs)
        total = sum(num_nodes.values()) if isinstance(num_nodes, dict) else num_nodes
        self.num_nodes = num_nodes
        self.num_edges: Sizes = num_edges if num_edges else total * (total - 1)
        self.num_graphs = num_graphs
        self.node_pad_value = 0.0 if node_pad_value is None else node_pad_value
        self.edge_pad_value = 0.0 if edge_pad_value is None else edge_pad_value
        self.graph_pad_value = 0.0 if graph_pad_value is None else graph_pad_value
        self.pad_graph_defaults = {} if pad_graph_defaults is None else pad_graph_defaults

    @property
    def total_num_nodes(self) -> Any:
        """Nodes of all types."""
        return sum(self.num_nodes.values()) if self.is_hetero() else self.num_nodes  # type: ignore[union-attr]

    @property
    def total_num_edges(self) -> Any:
        """Edges of all types."""
        return sum(self.num_edges.values()) if self.is_hetero() else self.num_edges  # type: ignore[union-attr]

    def is_hetero(self) -> bool:
        """Whether there is a number for each type of node and of edge."""
        return isinstance(self.num_nodes, dict) and isinstance(self.num_edges, dict)

    def to_hetero(self, node_types: Iterable[Any], edge_types: Iterable[Any]) -> FixedSizeOptions:
        """Let each number count for every type; changes and returns these options.

        >>> FixedSizeOptions(3, 4).to_hetero(["a", "b"], [("a", "to", "b")]).num_nodes
        {'a': 3, 'b': 3}
        """
        if not isinstance(self.num_nodes, dict):
            self.num_nodes = dict.fromkeys(node_types, self.num_nodes)
        if not isinstance(self.num_edges, dict):
            self.num_edges = dict.fromkeys(edge_types, self.num_edges)
        return self

    @classmethod
    def from_dataset(
        cls, dataset: Any, batch_size: int, sample_limit: int | None = None, progress_bar: bool | None = None
    ) -> FixedSizeOptions:
        """Room for any ``batch_size - 1`` graphs of the data set, or of its first ``sample_limit``, and for padding."""
        validate_num_graphs(batch_size)
        limit = len(dataset) if sample_limit is None else min(sample_limit, len(dataset))
        graphs: Iterable[Any] = (dataset[index] for index in range(limit))
        if limit >= _SHOWS_PROGRESS if progress_bar is None else progress_bar:
            from tqdm import tqdm

            graphs = tqdm(graphs, total=limit)
        largest = _Largest()
        for graph in graphs:
            largest.see(graph)
        nodes, edges = largest.sizes(lambda size: size * (batch_size - 1) + 1)
        return cls(nodes, edges, batch_size)

    @classmethod
    def from_loader(cls, loader: Any, sample_limit: int = 1000) -> FixedSizeOptions:
        """Room for the largest of ``sample_limit`` mini-batches and one more node, edge and graph."""
        largest, graphs, seen = _Largest(), 0, 0
        while seen < sample_limit:
            before = seen
            for batch in itertools.islice(loader, sample_limit - seen):
                seen += 1
                largest.see(batch)
                graphs = max(graphs, getattr(batch, "num_graphs", 1))
            if seen == before:
                raise ValueError("The loader yields nothing, so the sizes of its mini-batches are unknown.")
        nodes, edges = largest.sizes(lambda size: size + 1)
        return cls(nodes, edges, graphs + 1)

    def __repr__(self) -> str:
        reserved = "(At least one {} reserved for padding)".format
        return (
            f"{type(self).__name__}(num_nodes={self.num_nodes} {reserved('node')}, "
            f"num_edges={self.num_edges} {reserved('edge')}, num_graphs={self.num_graphs} {reserved('graph')}, "
            f"node_pad_value={self.node_pad_value}, edge_pad_value={self.edge_pad_value}, "
            f"graph_pad_value={self.graph_pad_value}, pad_graph_defaults={self.pad_graph_defaults})"
        )


_SHOWS_PROGRESS = 10_000
"""From so many graphs on, looking at them takes a while."""


class _Largest:
    """The largest numbers of nodes and edges, by type where there are types."""

    def __init__(self) -> None:
        self._nodes: dict[Any, int] = {}
        self._edges: dict[Any, int] = {}

    def see(self, graph: Any) -> None:
        hetero = isinstance(graph, HeteroData)
        nodes = {t: graph[t].num_nodes for t in graph.node_types} if hetero else {None: graph.num_nodes}
        edges = {t: graph[t].num_edges for t in graph.edge_types} if hetero else {None: graph.num_edges}
        for known, found in ((self._nodes, nodes), (self._edges, edges)):
            for key, size in found.items():
                known[key] = max(known.get(key, 0), size)

    def sizes(self, grown: Any) -> tuple[Sizes, Sizes]:
        """The numbers, each changed by a function; without types, one for all."""
        nodes, edges = ({t: grown(size) for t, size in known.items()} for known in (self._nodes, self._edges))
        return (nodes[None], edges[None]) if None in nodes else (nodes, edges)
