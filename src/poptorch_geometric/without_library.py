"""Searches of PyG without ``pyg-lib``: its functions and layers ask ``torch.ops.pyg``, which is then ours.

While a model is captured, the search gets batch numbers instead of boundaries, which would depend on values, and
returns -1 for missing neighbours. Outside, results are what ``pyg-lib`` returns.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch_geometric.typing

from poptorch._impl import isDispatchTracing
from poptorch.ops.point_cloud import nearest as _nearest
from poptorch_geometric.common import call_once
from poptorch_geometric.ops import search

_SEARCHING = {
    "torch_geometric.nn.pool": "_batch_to_ptr",
    "torch_geometric.nn.conv.edge_conv": "index2ptr",
    "torch_geometric.nn.conv.gravnet_conv": "index2ptr",
    "torch_geometric.nn.conv.x_conv": "index2ptr",
}
"""Where boundaries of batches are made for a search, and by which function."""


class _Numbers(NamedTuple):
    """Batch numbers in the place of boundaries."""

    values: torch.Tensor


def _numbers(boundaries: Any) -> torch.Tensor | None:
    if boundaries is None or isinstance(boundaries, _Numbers):
        return None if boundaries is None else boundaries.values
    sizes = boundaries[1:] - boundaries[:-1]
    return torch.arange(len(sizes)).repeat_interleave(sizes)


def _found(pairs: torch.Tensor) -> torch.Tensor:
    return pairs if isDispatchTracing() else search.without_missing(pairs)


def _knn(x: Any, y: Any, ptr_x: Any, ptr_y: Any, k: int, cosine: bool = False, num_workers: int = 1) -> torch.Tensor:
    return _found(search.knn(x, y, k, _numbers(ptr_x), _numbers(ptr_y), cosine))


def _radius(
    x: Any,
    y: Any,
    ptr_x: Any,
    ptr_y: Any,
    r: float,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    ignore_same_index: bool = False,
) -> torch.Tensor:
    pairs = search.radius(x, y, r, _numbers(ptr_x), _numbers(ptr_y), max_num_neighbors + ignore_same_index)
    if ignore_same_index:
        pairs = pairs[:, pairs[0] != pairs[1]]
    return _found(pairs)


def _nearest_of_batch(x: Any, y: Any, ptr_x: Any, ptr_y: Any) -> torch.Tensor:
    return _nearest(x, y, _numbers(ptr_x), _numbers(ptr_y)).long()


@call_once
def provide() -> None:
    """Let PyG search with the functions here, where it has no library."""
    ours: dict[str, Callable[..., Any]] = {"KNN": _knn, "RADIUS": _radius, "NEAREST": _nearest_of_batch}
    for name, function in ours.items():
        flag = f"WITH_{name}"
        if getattr(torch_geometric.typing, flag, None) is False and not hasattr(torch.ops.pyg, name.lower()):
            setattr(torch.ops.pyg, name.lower(), function)
            setattr(torch_geometric.typing, flag, True)
    _provide_to_earlier_releases()


def _provide_to_earlier_releases() -> None:
    """Before 2.8, functions and layers asked ``torch_cluster``, or what PyG has in its place."""
    place = getattr(torch_geometric.typing, "torch_cluster", None)
    if place is None or getattr(torch_geometric.typing, "WITH_TORCH_CLUSTER", True):
        return
    functions = {name: _as_of_library(getattr(search, name)) for name in _SEARCHES}
    for name, function in {**functions, "nearest": lambda *args: _nearest(*args).long()}.items():
        setattr(place, name, function)
    for module, name in _ASKING.items():
        layer = importlib.import_module(module)
        if getattr(layer, name, 0) is None:
            setattr(layer, name, functions[name])


_SEARCHES = ("knn", "knn_graph", "radius", "radius_graph")
_ASKING = {
    "torch_geometric.nn.conv.edge_conv": "knn",
    "torch_geometric.nn.conv.gravnet_conv": "knn",
    "torch_geometric.nn.conv.x_conv": "knn_graph",
}


def _as_of_library(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *args, **kwargs: _found(function(*args, **kwargs))


@contextmanager
def batch_numbers() -> Iterator[None]:
    """In here, searches get batch numbers."""
    before = []
    for name, attribute in _SEARCHING.items():
        module = importlib.import_module(name)
        if hasattr(module, attribute) and not torch_geometric.typing.WITH_PYG_LIB:
            before.append((module, attribute, getattr(module, attribute)))
            setattr(module, attribute, _in_place_of(getattr(module, attribute)))
    try:
        yield
    finally:
        for module, attribute, function in before:
            setattr(module, attribute, function)


def _in_place_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def made(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not isDispatchTracing():  # another thread
            return function(batch, *args, **kwargs)
        return None if batch is None else _Numbers(batch)

    return made
