"""Which attributes of graphs have a row for each node or for each edge.

A graph alone cannot tell: one of five nodes may have five edges, or five labels. So all graphs of a batch are asked.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch_geometric.data.storage import EdgeStorage, NodeStorage

from poptorch_geometric.types import check_dense, plain


class Level(enum.Enum):
    """What an attribute has a row for."""

    NODE = "node"
    EDGE = "edge"
    GRAPH = "graph"


class Kind:
    """A kind of store that graphs have: all of a graph without types; else one type, or what is of no type."""

    def __init__(self, key: Any, stores: Sequence[Any]) -> None:
        """``stores`` are those of the real graphs, one for each."""
        self.key = key
        self.stores = stores
        self.has_nodes = isinstance(stores[0], NodeStorage)
        self.has_edges = isinstance(stores[0], EdgeStorage)
        self.num_nodes = [_size(store.num_nodes) for store in stores] if self.has_nodes else []
        self.num_edges = [_size(store.num_edges) for store in stores] if self.has_edges else []
        self.levels = {name: self._level(name) for name in stores[0].keys()}  # noqa: SIM118

    def _level(self, name: str) -> Level:
        values = [store[name] for store in self.stores if name in store]
        if len(values) < len(self.stores) or not all(isinstance(v, torch.Tensor) and v.dim() for v in values):
            return Level.GRAPH
        if name == "edge_index":
            return Level.EDGE
        sizes = [value.shape[dim(store, name)] for value, store in zip(values, self.stores, strict=True)]
        of_nodes, of_edges = self.has_nodes and sizes == self.num_nodes, self.has_edges and sizes == self.num_edges
        if of_nodes and of_edges:
            return Level.EDGE if name == "e_id" or "edge" in name else Level.NODE
        return Level.NODE if of_nodes else Level.EDGE if of_edges else Level.GRAPH


def kinds_of(graphs: Sequence[Any], overrides: Mapping[str, Level]) -> dict[Any, Kind]:
    """The kinds of stores of graphs of one sort. ``overrides`` are levels that are known otherwise."""
    for graph in graphs:
        check_dense(graph)
    columns: dict[Any, list[Any]] = {}
    for graph in graphs:
        for store in graph.stores:
            columns.setdefault(store._key, []).append(store)
    kinds = {key: Kind(key, stores) for key, stores in columns.items()}
    for name in overrides.keys() & kinds[None].levels.keys():
        kinds[None].levels[name] = overrides[name]
    return kinds


def dim(store: Any, name: str) -> int:
    """Along which dimension PyG joins an attribute."""
    found = store._parent().__cat_dim__(name, plain(store[name]), store)
    return 0 if found is None else int(found)


def _size(number: int | None) -> int:
    return 0 if number is None else int(number)
