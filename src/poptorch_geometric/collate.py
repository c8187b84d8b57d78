"""Collaters: lists of graphs become batches of fixed size, and several batches one for a call of a model."""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch_geometric.data import Batch, Data, HeteroData

from poptorch._utils import combine_batch_tensors_gen
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.levels import Kind, Level, kinds_of
from poptorch_geometric.padding import PaddingGraphs, pad_masks
from poptorch_geometric.pyg_collate import Collater
from poptorch_geometric.trimming import chosen, without_edges, without_nodes
from poptorch_geometric.types import PyGArgsParser, plain

__all__ = ["CombinedBatchingCollater", "FixedSizeCollater"]


def make_exclude_keys(include_keys: Sequence[str], data: Any) -> tuple[str, ...]:
    """The names of all attributes of ``data`` but these.

    >>> make_exclude_keys(["x"], Data(x=torch.ones(1), y=torch.ones(1)))
    ('y',)
    """
    names = dict.fromkeys(name for store in data.stores for name in store.keys())  # noqa: SIM118
    return tuple(name for name in names if name not in include_keys)


class FixedSizeCollater(Collater):
    """Joins graphs into a batch of the size that options say: padding graphs follow, or nodes and edges are left out.

    >>> collater = FixedSizeCollater(FixedSizeOptions(num_nodes=5, num_edges=4, num_graphs=3))
    >>> graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
    >>> collater([graph]).batch.tolist()
    [0, 0, 1, 1, 2]
    """

    class LabelsType(enum.Enum):
        """What ``y`` has a row for."""

        GRAPH_LVL = 0
        NODE_LVL = 1

    def __init__(
        self,
        fixed_size_options: Any = None,
        *args: Any,
        add_masks_to_batch: bool = False,
        trim_nodes: bool = False,
        trim_edges: bool = False,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        **sizes: Any,
    ) -> None:
        """Sizes instead of options, as keywords (``num_nodes`` and so on), are the form of release 3.2."""
        if isinstance(fixed_size_options, FixedSizeOptions):
            names: tuple[str, ...] = ("add_masks_to_batch", "trim_nodes", "trim_edges", "follow_batch", "exclude_keys")
            given = dict(zip(names, args, strict=False))
            if len(args) > len(names) or sizes:
                raise TypeError(f"Unexpected arguments beside FixedSizeOptions: {list(sizes) or args[len(names) :]}")
            self._one_padding_graph = False
            self.opts = fixed_size_options
        else:
            names = _FORMER
            if fixed_size_options is not None:
                sizes["num_nodes"] = fixed_size_options
            given = dict(zip(names, args, strict=False))
            sizes |= {name: given.pop(name) for name in [n for n in given if n in _SIZES]}
            self._one_padding_graph = sizes.get("num_graphs") is None
            sizes["num_graphs"] = sizes.get("num_graphs") or 2
            self.opts = FixedSizeOptions(**sizes)
        super().__init__(given.get("follow_batch", follow_batch), given.get("exclude_keys", exclude_keys))
        self.add_masks_to_batch = given.get("add_masks_to_batch", add_masks_to_batch)
        self.trim_nodes = given.get("trim_nodes", trim_nodes)
        self.trim_edges = given.get("trim_edges", trim_edges)
        self.labels_type: FixedSizeCollater.LabelsType | None = None

    def __call__(self, data_list: Any) -> Any:
        """The batch of these graphs."""
        if not isinstance(data_list, list):
            raise TypeError(f"Expected list, got {type(data_list).__name__}.")
        return self.collate_first_kept(data_list)

    def collate_first_kept(self, data_list: list[Any], kept: Mapping[Any, int] | None = None) -> Any:
        """The batch. Of each graph the first ``kept`` nodes, by type, are never left out."""
        graphs = self._checked(data_list)
        num_graphs = len(graphs) + 1 if self._one_padding_graph else int(self.opts.num_graphs)
        if len(graphs) > num_graphs:
            raise RuntimeError(
                f"The maximum number of graphs requested doesn't allocate enough room for all the graphs: there are "
                f"{len(graphs)}, and num_graphs is {num_graphs}."
            )
        levels = self._label_level(graphs)
        graphs, kinds = self._trimmed(graphs, levels, num_graphs, kept or {})
        missing_nodes, missing_edges = self._missing(kinds, len(graphs))
        count = num_graphs - len(graphs)
        if not count and (any(missing_nodes.values()) or any(missing_edges.values())):
            raise RuntimeError(
                f"The batch has {num_graphs} graphs, as many as num_graphs, and cannot create additional graphs to pad "
                f"nodes and edges: {sum(missing_nodes.values())} nodes and {sum(missing_edges.values())} edges are "
                "missing. Give num_graphs room for one more."
            )
        padding = PaddingGraphs(graphs[0], kinds, self.opts, count).make(missing_nodes, missing_edges) if count else []
        batch = Batch.from_data_list([*graphs, *padding], self.follow_batch, self.exclude_keys)
        self._say_sizes(batch, kinds)
        if self.add_masks_to_batch:
            pad_masks(batch, kinds, len(graphs), num_graphs, (self._limits(kinds, True), self._limits(kinds, False)))
        return batch

    def only_padding(self, like: Any) -> Any:
        """A batch without real graphs; ``like`` is any graph of the data set."""
        graphs = self._checked([like])
        kinds = kinds_of(graphs, self._label_level(graphs))
        nodes, edges = self._limits(kinds, of_nodes=True), self._limits(kinds, of_nodes=False)
        count = int(self.opts.num_graphs)
        padding = PaddingGraphs(graphs[0], kinds, self.opts, count).make(nodes, edges)
        batch = Batch.from_data_list(padding, self.follow_batch, self.exclude_keys)
        self._say_sizes(batch, kinds)
        if self.add_masks_to_batch:
            for kind in kinds.values():
                kind.num_nodes, kind.num_edges = [], []
            pad_masks(batch, kinds, 0, count, (nodes, edges))
        return batch

    # -- what comes in ---------------------------------------------------------------------------------------------

    def _checked(self, data_list: list[Any]) -> list[Any]:
        first = data_list[0]
        if not isinstance(first, (Data, HeteroData)):
            raise ValueError(f"Unsupported data type: {type(first).__name__}. Graphs are Data or HeteroData.")
        assert all(isinstance(graph, HeteroData) == isinstance(first, HeteroData) for graph in data_list), (
            "All graphs of a batch must be Data, or all HeteroData."
        )
        if isinstance(first, HeteroData):
            if not self.opts.is_hetero():
                self.opts.to_hetero(first.node_types, first.edge_types)
            known = {*self.opts.num_nodes, *self.opts.num_edges}  # type: ignore[misc]
            for kind in (*first.node_types, *first.edge_types):
                assert kind in known, f"The type {kind!r} exists in the data but not in the fixed size options."
        return [copy.copy(graph) for graph in data_list]

    def _label_level(self, graphs: Sequence[Any]) -> dict[str, Level]:
        """What ``y`` of graphs without types is: it must be the same for all of them."""
        labels = [graph.get("y") for graph in graphs] if isinstance(graphs[0], Data) else [None]
        if labels[0] is None or "y" in self.exclude_keys:
            return {}
        rows = [y.shape[0] if isinstance(y, torch.Tensor) and y.dim() else 1 for y in labels]
        if all(row == 1 for row in rows):
            self.labels_type = self.LabelsType.GRAPH_LVL
            return {"y": Level.GRAPH}
        assert rows == [graph.num_nodes for graph in graphs], (
            "Incorrect input data: y must have a row for each node in all graphs, or one row in all graphs. "
            f"It has {rows} rows, and the graphs have {[graph.num_nodes for graph in graphs]} nodes."
        )
        self.labels_type = self.LabelsType.NODE_LVL
        return {"y": Level.NODE}

    # -- sizes -----------------------------------------------------------------------------------------------------

    def _limits(self, kinds: Mapping[Any, Kind], of_nodes: bool) -> dict[Any, int]:
        sizes = self.opts.num_nodes if of_nodes else self.opts.num_edges
        present = [key for key, kind in kinds.items() if (kind.has_nodes if of_nodes else kind.has_edges)]
        return {key: sizes[key] if isinstance(sizes, dict) else sizes for key in present}

    def _missing(self, kinds: Mapping[Any, Kind], samples: int) -> tuple[dict[Any, int], dict[Any, int]]:
        """How many nodes and edges are to be padded, by type; an error where there are too many."""
        result = []
        for of_nodes in (True, False):
            missing = {}
            for key, limit in self._limits(kinds, of_nodes).items():
                kind = kinds[key]
                number = sum(kind.num_nodes if of_nodes else kind.num_edges)
                if number > limit:
                    _refuse_size(key, "nodes" if of_nodes else "edges", samples, number, limit)
                missing[key] = limit - number
            result.append(missing)
        return result[0], result[1]

    def _say_sizes(self, batch: Any, kinds: Mapping[Any, Kind]) -> None:
        """Store the number of nodes where PyG cannot see it."""
        for key, limit in self._limits(kinds, of_nodes=True).items():
            store = batch._store if key is None else batch[key]
            if store.num_nodes != limit:
                store["num_nodes"] = limit

    # -- trimming --------------------------------------------------------------------------------------------------

    def _trimmed(
        self, graphs: list[Any], levels: Mapping[str, Level], num_graphs: int, kept: Mapping[Any, int]
    ) -> tuple[list[Any], dict[Any, Kind]]:
        kinds = kinds_of(graphs, levels)
        if self.trim_nodes:
            limits = self._limits(kinds, of_nodes=True)
            trimmed = self._with_nodes(graphs, kinds, limits, kept)
            if trimmed is not graphs and num_graphs > len(graphs):
                limits = self._with_room(limits, kinds, kinds_of(trimmed, levels), kept)
                trimmed = self._with_nodes(trimmed, kinds_of(trimmed, levels), limits, kept)
            graphs, kinds = trimmed, kinds_of(trimmed, levels)
        if self.trim_edges:
            graphs = self._with_edges(graphs, kinds)
            kinds = kinds_of(graphs, levels)
        return graphs, kinds

    def _with_room(
        self, limits: dict[Any, int], before: Mapping[Any, Kind], after: Mapping[Any, Kind], kept: Mapping[Any, int]
    ) -> dict[Any, int]:
        """One node less of types that were trimmed and whose edges will have to be padded: these need a node."""
        result = dict(limits)
        for key, limit in self._limits(after, of_nodes=False).items():
            if sum(after[key].num_edges) >= limit:
                continue
            for end in (key[0], key[2]) if isinstance(key, tuple) else (None,):
                least = max(sum(1 for size in after[end].num_nodes if size), kept.get(end, 0))
                if sum(before[end].num_nodes) > limits[end] and limits[end] - 1 >= least:
                    result[end] = limits[end] - 1
        return result

    def _with_nodes(
        self, graphs: list[Any], kinds: Mapping[Any, Kind], limits: Mapping[Any, int], kept: Mapping[Any, int]
    ) -> list[Any]:
        masks = {}
        for key, limit in limits.items():
            sizes = kinds[key].num_nodes
            if sum(sizes) <= limit:
                continue
            first = [min(kept.get(key, 0), size) for size in sizes]
            needed = sum(max(one, 1) for one, size in zip(first, sizes, strict=True) if size)
            if limit < needed:
                raise RuntimeError(
                    f"{_named(key)}nodes would have to be trimmed to {limit}, which would result in empty graphs or "
                    f"without their first nodes: {len(graphs)} graphs need {needed} of them. Give num_nodes more room."
                )
            masks[key] = chosen(sizes, limit, first)
        return without_nodes(graphs, kinds, masks) if masks else graphs

    def _with_edges(self, graphs: list[Any], kinds: Mapping[Any, Kind]) -> list[Any]:
        masks = {}
        for key, limit in self._limits(kinds, of_nodes=False).items():
            sizes = kinds[key].num_edges
            if sum(sizes) > limit:
                masks[key] = chosen(sizes, limit)
        return without_edges(graphs, kinds, masks) if masks else graphs

    def _prune_nodes(self, data_list: Sequence[Any]) -> list[Any]:
        graphs = self._checked(list(data_list))
        kinds = kinds_of(graphs, self._label_level(graphs))
        return self._with_nodes(graphs, kinds, self._limits(kinds, of_nodes=True), {})

    def _prune_edges(self, data_list: Sequence[Any]) -> list[Any]:
        graphs = self._checked(list(data_list))
        return self._with_edges(graphs, kinds_of(graphs, self._label_level(graphs)))


_SIZES = (
    "num_nodes", "num_edges", "num_graphs", "node_pad_value", "edge_pad_value", "graph_pad_value", "pad_graph_defaults",
)  # fmt: skip
_FORMER = (*_SIZES[1:6], "add_masks_to_batch", "trim_nodes", "trim_edges", _SIZES[6], "follow_batch", "exclude_keys")
"""The arguments of release 3.2 after the first one, in order."""


def _named(key: Any) -> str:
    return "" if key is None else f"{key} "


def _refuse_size(key: Any, what: str, samples: int, number: int, limit: int) -> None:
    name = f"{_named(key)}{what}"
    raise RuntimeError(
        f"The fixed sizes given don't allocate enough space for the number of {name} required to fit {samples} samples "
        f"into a batch: there are {number}. The current maximum number of {name} is {limit}. Give num_{what} more "
        f"room, or set trim_{what}."
    )


class CombinedBatchingCollater:
    """Collates mini-batches of graphs one by one, and joins them along the first dimension, for one call of a model."""

    def __init__(self, collater: Any, mini_batch_size: int | None = None) -> None:
        self.collater = collater
        self.mini_batch_size = mini_batch_size
        self.parser = PyGArgsParser()

    def __call__(self, batch: list[Any]) -> Any:
        """The batches of all slices of the list, as one."""
        size = self.mini_batch_size or len(batch)
        assert len(batch) % size == 0, (
            f"Invalid batch size: {len(batch)} items are no multiple of the mini-batch size, {size}."
        )
        return combined([self.collater(part) for part in data_slice_gen(batch, size)], self.parser)


def data_slice_gen(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Slices of ``size`` items, one after the other.

    >>> list(data_slice_gen([1, 2, 3, 4], 2))
    [[1, 2], [3, 4]]
    """
    for start in range(0, len(items), size):
        yield items[start : start + size]


def combined(batches: Sequence[Any], parser: PyGArgsParser) -> Any:
    """Several batches as one, whose ``num_graphs``, ``num_nodes`` and ``num_edges`` are those of each of them."""
    first = batches[0]
    if not isinstance(first, (Data, HeteroData)):
        return torch.cat(list(batches)) if isinstance(first, torch.Tensor) else first
    tensors = [[t.reshape(1) if t.dim() == 0 else t for t in parser.yieldTensors(batch)] for batch in batches]
    whole = parser.reconstruct(first, iter(list(combine_batch_tensors_gen(tensors))))
    for index, store in enumerate(whole.stores):
        for name, value in list(store.items()):
            if isinstance(value, list) and len(value) == getattr(first, "num_graphs", -1):
                store[name] = [item for batch in batches for item in batch.stores[index][name]]
    holder = whole._global_store if isinstance(whole, HeteroData) else whole._store
    sizes = first.num_nodes, first.num_edges
    holder["num_nodes"], holder["num_edges"] = sizes
    return whole


def create_slices_and_preserve_mask(batch: Any, num_slices: int) -> list[Any]:
    """The batches that were joined into one, without padding graphs where ``graphs_mask`` tells of them."""
    parser = PyGArgsParser()
    columns = [plain(tensor).chunk(num_slices) for tensor in parser.yieldTensors(batch)]
    return [parser.reconstruct(batch, iter([column[index] for column in columns])) for index in range(num_slices)]
