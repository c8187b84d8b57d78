"""Leaving out the graphs of a micro-batch that do not fit any more."""

from __future__ import annotations

from typing import Any

from torch_geometric.data import HeteroData

from poptorch_geometric.collate import FixedSizeCollater


class SkippingCollater:
    """Gives a collater those graphs, in order, that fit into what the ones before have left."""

    def __init__(self, collater: FixedSizeCollater) -> None:
        self.collater = collater
        self.opts = collater.opts

    def __call__(self, graphs: list[Any]) -> Any:
        """The batch of the graphs that fit; there must be one."""
        left: dict[Any, int] = {}
        fitting = []
        for graph in graphs:
            needed = self._sizes(graph)
            if all(left.get(key, self._limit(key)) >= size for key, size in needed.items()):
                left |= {key: left.get(key, self._limit(key)) - size for key, size in needed.items()}
                fitting.append(graph)
        if not fitting:
            raise RuntimeError(
                f"None of the {len(graphs)} graphs of a micro-batch fits into the fixed sizes: {self.opts!r}. Give "
                "num_nodes and num_edges more room."
            )
        return self.collater(fitting)

    def _limit(self, key: Any) -> int:
        what, kind = key
        sizes = self.opts.num_nodes if what == "nodes" else self.opts.num_edges
        return int(sizes[kind] if isinstance(sizes, dict) else sizes)

    @staticmethod
    def _sizes(graph: Any) -> dict[Any, int]:
        if isinstance(graph, HeteroData):
            nodes = {("nodes", kind): graph[kind].num_nodes for kind in graph.node_types}
            return nodes | {("edges", kind): graph[kind].num_edges for kind in graph.edge_types}
        return {("nodes", None): graph.num_nodes, ("edges", None): graph.num_edges}
