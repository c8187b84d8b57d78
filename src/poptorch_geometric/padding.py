"""Padding graphs: they follow the real ones and fill a batch up to its fixed size."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch_geometric.transforms.pad import Padding

from poptorch_geometric.common import call_once
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.levels import Kind, Level, dim
from poptorch_geometric.types import plain

_NEVER = ("train_mask", "val_mask", "test_mask")
"""Masks in which padding is never set."""


def shares(total: int, count: int) -> list[int]:
    """Almost equal parts.

    >>> shares(5, 3)
    [2, 2, 1]
    """
    return [total // count + (index < total % count) for index in range(count)]


class PaddingGraphs:
    """Makes the padding graphs of one batch, after its first real graph."""

    def __init__(self, first: Any, kinds: Mapping[Any, Kind], options: FixedSizeOptions, count: int) -> None:
        self._first = first
        self._kinds = kinds
        self._options = options
        self._count = count
        self._nodes: dict[Any, list[int]] = {}
        self._edges: dict[Any, list[int]] = {}

    def make(self, nodes: Mapping[Any, int], edges: Mapping[Any, int]) -> list[Any]:
        """Graphs that have together so many nodes and edges, by type."""
        self._nodes = {key: shares(number, self._count) for key, number in nodes.items()}
        self._edges = {key: self._edge_shares(key, number) for key, number in edges.items()}
        return [self._graph(index) for index in range(self._count)]

    def _ends(self, key: Any) -> tuple[Any, Any]:
        return (key[0], key[2]) if isinstance(key, tuple) else (None, None)

    def _edge_shares(self, key: Any, number: int) -> list[int]:
        """Among the graphs that have a node at both ends; all to the first one if none has."""
        source, target = self._ends(key)
        able = sum(1 for pair in zip(self._nodes[source], self._nodes[target], strict=True) if all(pair))
        if number and not able:
            _warn_of_no_node()
        return [*shares(number, max(able, 1)), *[0] * self._count][: self._count]

    def _graph(self, index: int) -> Any:
        made = copy.copy(self._first)
        for store in made.stores:
            kind = self._kinds[store._key]
            store.__dict__.pop("_cached_attr", None)
            sizes = {
                Level.NODE: self._nodes[kind.key][index] if kind.has_nodes else 0,
                Level.EDGE: self._edges[kind.key][index] if kind.has_edges else 0,
            }
            for name in list(store.keys()):
                store[name] = self._value(kind, store, name, sizes)
            if kind.has_edges and "edge_index" in store:
                store["edge_index"] = self._edge_index(kind.key, index, plain(store["edge_index"]))
            if kind.has_nodes and ("num_nodes" in store or store.num_nodes != sizes[Level.NODE]):
                store["num_nodes"] = sizes[Level.NODE]
        return made

    def _value(self, kind: Kind, store: Any, name: str, sizes: Mapping[Level, int]) -> Any:
        value, level = plain(store[name]), kind.levels[name]
        if not isinstance(value, torch.Tensor):
            return self._options.pad_graph_defaults.get(name, value)
        if level is Level.GRAPH:
            return torch.full(value.shape, self._options.graph_pad_value).to(value.dtype)
        shape = list(value.shape)
        shape[dim(store, name)] = sizes[level]
        option = self._options.node_pad_value if level is Level.NODE else self._options.edge_pad_value
        filling = False if name in _NEVER else padding_value(option, kind.key, name)
        return torch.full(shape, filling).to(value.dtype)

    def _edge_index(self, key: Any, index: int, like: torch.Tensor) -> torch.Tensor:
        """Loops at the first node of the graph; where it has none, at the node before."""
        ends = [0 if self._nodes[end][index] else -1 for end in self._ends(key)]
        return like.new_tensor(ends).reshape(2, 1).expand(2, self._edges[key][index]).contiguous()


def padding_value(option: Any, key: Any, name: str) -> float:
    """What an attribute is filled with; PyG's ``Padding`` objects know it for each type and name."""
    return option.get_value(key, name) if isinstance(option, Padding) else option


@call_once
def _warn_of_no_node() -> None:
    warnings.warn(
        "A batch has edges to pad, but no node for padding: its padded edges are loops at the last real node, and only "
        "edges_mask tells them from real ones. Reserve a node with a larger num_nodes.",
        UserWarning,
        stacklevel=2,
    )


def pad_masks(batch: Any, kinds: Mapping[Any, Kind], graphs: int, total_graphs: int, sizes: Sequence[Any]) -> None:
    """Tell in the batch which graphs, nodes and edges are real: the first ones."""
    nodes, edges = sizes
    for store in batch.stores:
        kind = kinds.get(store._key)
        if kind is not None and kind.has_nodes:
            store["nodes_mask"] = torch.arange(nodes[kind.key]) < sum(kind.num_nodes)
        if kind is not None and kind.has_edges:
            store["edges_mask"] = torch.arange(edges[kind.key]) < sum(kind.num_edges)
    batch.graphs_mask = torch.arange(total_graphs) < graphs
