"""Leaving out nodes or edges of graphs, so that they fit into a batch of fixed size."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from poptorch_geometric.levels import Kind, Level, dim
from poptorch_geometric.types import plain

Masks = Mapping[Any, list[torch.Tensor]]
"""What stays of each graph, by type."""


def chosen(sizes: Sequence[int], limit: int, kept: Sequence[int] | None = None) -> list[torch.Tensor]:
    """For each graph a mask of what stays: ``limit`` in all, at random, and at least one of each graph that has any.

    ``kept`` says how many first ones of each graph always stay.

    >>> [int(mask.sum()) for mask in chosen([1, 5], 2)]
    [1, 1]
    """
    masks = []
    for index, size in enumerate(sizes):
        mask = torch.zeros(size, dtype=torch.bool)
        always = 0 if kept is None else kept[index]
        if always:
            mask[:always] = True
        elif size:
            mask[int(torch.randint(size, (1,)))] = True
        masks.append(mask)
    together = torch.cat(masks) if masks else torch.zeros(0, dtype=torch.bool)
    free = (~together).nonzero().flatten()
    missing = max(limit - int(together.sum()), 0)
    together[free[torch.randperm(len(free))[:missing]]] = True
    return list(together.split(list(sizes)))


def without_nodes(
    graphs: Sequence[Any], kinds: Mapping[Any, Kind], masks: Mapping[Any, list[torch.Tensor]]
) -> list[Any]:
    """The graphs with these nodes only, by type, and with the edges between them."""
    result = []
    for index, graph in enumerate(graphs):
        made = copy.copy(graph)
        for store in made.stores:
            kind = kinds[store._key]
            keep: dict[Level, torch.Tensor] = {}
            if kind.has_nodes and kind.key in masks:
                keep[Level.NODE] = masks[kind.key][index]
            if kind.has_edges and "edge_index" in store:
                source, target = (kind.key[0], kind.key[2]) if isinstance(kind.key, tuple) else (None, None)
                rows = plain(store["edge_index"])
                ends = [masks[end][index] if end in masks else None for end in (source, target)]
                if any(end is not None for end in ends):
                    stays = torch.ones(rows.shape[1], dtype=torch.bool)
                    places = []
                    for row, end in zip(rows, ends, strict=True):
                        stays &= True if end is None else end[row]
                        places.append(row if end is None else (end.cumsum(0) - 1)[row])
                    keep[Level.EDGE] = stays
                    store["edge_index"] = torch.stack(places)
            _select(store, kind, keep)
        result.append(made)
    return result


def without_edges(
    graphs: Sequence[Any], kinds: Mapping[Any, Kind], masks: Mapping[Any, list[torch.Tensor]]
) -> list[Any]:
    """The graphs with these edges only, by type."""
    result = []
    for index, graph in enumerate(graphs):
        made = copy.copy(graph)
        for store in made.stores:
            if store._key in masks and kinds[store._key].has_edges:
                _select(store, kinds[store._key], {Level.EDGE: masks[store._key][index]})
        result.append(made)
    return result


def _select(store: Any, kind: Kind, keep: Mapping[Level, torch.Tensor]) -> None:
    store.__dict__.pop("_cached_attr", None)
    for name, level in kind.levels.items():
        if level in keep and name in store:
            store[name] = plain(store[name]).index_select(dim(store, name), keep[level].nonzero().flatten())
    if Level.NODE in keep and ("num_nodes" in store or store.num_nodes != int(keep[Level.NODE].sum())):
        store["num_nodes"] = int(keep[Level.NODE].sum())
    if Level.EDGE in keep and "num_edges" in store:
        store["num_edges"] = int(keep[Level.EDGE].sum())
