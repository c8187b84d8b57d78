"""Graphs as arguments and results of models."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import BaseData

from poptorch.arg_parsers import ICustomArgParser, registerCustomArgParser
from poptorch_geometric.common import DataBatch, HeteroDataBatch, call_once


def check_dense(graph: Any) -> None:
    """Refuse adjacency matrices in a sparse form, which no program takes."""
    for store in graph.stores:
        for key, value in store.items():
            is_sparse = isinstance(value, torch.Tensor) and value.layout is not torch.strided
            if is_sparse or type(value).__name__ == "SparseTensor":
                raise ValueError(
                    f"The attribute {key!r} of the graph is sparse (a {type(value).__name__}). Programs take dense "
                    "tensors: use edge_index, without the transform ToSparseTensor."
                )


def plain(value: Any) -> Any:
    """A subclass of PyG (``EdgeIndex``, ``Index``) as the tensor that it is; any other value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return getattr(value, "as_tensor", lambda: value)()


class PyGArgsParser(ICustomArgParser):
    """Takes graphs and batches of graphs apart.

    >>> graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
    >>> [list(tensor.shape) for tensor in PyGArgsParser().yieldTensors(graph)]
    [[2, 1], [2, 1]]
    """

    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """All tensors: by name, for graphs of one type; else store by store."""
        check_dense(struct)
        for store, keys in _stores(struct):
            for key in keys:
                if isinstance(store[key], torch.Tensor):
                    yield plain(store[key])

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """A graph like the original with other tensors."""
        made = copy.copy(original_structure)
        for store, keys in _stores(made):
            for key in keys:
                if isinstance(store[key], torch.Tensor):
                    store[key] = next(tensor_iterator)
        for store in made.stores:
            for name in ("_slice_dict", "_inc_dict", "_cached_attr"):  # they belong to the tensors of before
                store.__dict__.pop(name, None)
        return made


def _stores(graph: Any) -> list[tuple[Any, list[str]]]:
    """The places with attributes, and their names, in the order in which tensors go in and out."""
    if isinstance(graph, HeteroData):
        stores = [graph._global_store, *graph.node_stores, *graph.edge_stores]
        return [(store, list(store.keys())) for store in stores]
    if isinstance(graph, Data):
        return [(graph._store, sorted(graph._store.keys()))]
    raise ValueError(
        f"Unsupported data type: {type(graph).__name__}. Pass torch_geometric.data.Data, HeteroData or their batches."
    )


@call_once
def registerCustomArgParsers() -> None:
    """Let models take and return graphs."""
    parser = PyGArgsParser()
    for kind in (BaseData, DataBatch, HeteroDataBatch):
        registerCustomArgParser(kind, parser)


registerCustomArgParsers()
