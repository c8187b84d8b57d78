"""Collaters: real parts as they were, padding behind them, and always the same shapes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData, TemporalData
from torch_geometric.transforms.pad import AttrNamePadding

from poptorch_geometric import FixedSizeOptions, make_exclude_keys
from poptorch_geometric.collate import CombinedBatchingCollater, FixedSizeCollater
from pyg_graphs import PATH, WRITES, dataset, graph, hetero

VALUES = {"node_pad_value": 22.0, "edge_pad_value": 34.0, "graph_pad_value": 55.0}


@pytest.mark.parametrize("labels", ["graph", "node"])
@pytest.mark.parametrize(("total", "real"), [(10, 8), (2, 1), (4, 4)])
def test_real_parts_and_padding(total: int, real: int, labels: str) -> None:
    graphs = dataset(real, labels)
    nodes, edges = sum(g.num_nodes for g in graphs), sum(g.num_edges for g in graphs)
    room = 0 if total == real else 7
    options = FixedSizeOptions(nodes + room, edges + 3 * room, total, **VALUES)
    before = copy.deepcopy(graphs)
    batch = FixedSizeCollater(options, add_masks_to_batch=True)(graphs)
    assert len(graphs) == real
    assert all(torch.equal(a.x, b.x) and a.keys() == b.keys() for a, b in zip(graphs, before, strict=True))
    assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (total, options.num_nodes, options.num_edges)
    for name, count, value in (("x", nodes, 22), ("edge_attr", edges, 34)):
        assert torch.equal(batch[name][:count], torch.cat([g[name] for g in graphs]))
        assert (batch[name][count:] == value).all()
    real_labels = torch.cat([g.y for g in graphs])
    assert torch.equal(batch.y[: len(real_labels)], real_labels)
    assert (batch.y[len(real_labels) :] == (55 if labels == "graph" else 22)).all()
    assert batch.y.dtype is torch.int64
    assert (batch.edge_index[:, edges:] >= nodes).all()
    assert (batch.edge_index < batch.num_nodes).all()
    assert torch.equal(batch.nodes_mask, torch.arange(batch.num_nodes) < nodes)
    assert torch.equal(batch.edges_mask, torch.arange(batch.num_edges) < edges)
    assert torch.equal(batch.graphs_mask, torch.arange(total) < real)
    assert batch.ptr[-1] == batch.num_nodes
    assert (batch.batch.diff() >= 0).all()
    for given, taken in zip(before, batch.to_data_list(), strict=False):
        assert torch.equal(given.x, taken.x)
        assert torch.equal(given.edge_index, taken.edge_index)


def test_padding_is_shared_among_the_padding_graphs() -> None:
    batch = FixedSizeCollater(FixedSizeOptions(10, 12, 4))([graph(3, 5)])
    assert batch.ptr.tolist() == [0, 3, 6, 8, 10]
    assert batch.edge_index[0, 5:].tolist() == [3, 3, 3, 6, 6, 8, 8]


def test_types_of_values_are_kept() -> None:
    one = graph(3, 4)
    one.train_mask = torch.tensor([True, False, True])
    one.kind = torch.tensor([1, 2, 3], dtype=torch.int32)
    one.weight = torch.ones(4)
    one.e_id = torch.arange(4)
    one.flags = torch.ones(3, dtype=torch.bool)
    batch = FixedSizeCollater(FixedSizeOptions(6, 9, 2, **VALUES))([one])
    assert not batch.train_mask[3:].any()
    assert batch.kind.tolist() == [1, 2, 3, 22, 22, 22]
    assert batch.kind.dtype is torch.int32
    assert batch.weight.tolist() == [1] * 4 + [34] * 5
    assert batch.e_id.tolist() == [0, 1, 2, 3] + [34] * 5
    assert batch.flags.all()


def test_values_by_name() -> None:
    options = FixedSizeOptions(6, 9, 2, node_pad_value=AttrNamePadding({"x": 7.0}, default=3.0))
    one = graph(3, 4)
    one.other = torch.ones(3)
    batch = FixedSizeCollater(options)([one])
    assert (batch.x[3:] == 7).all()
    assert (batch.other[3:] == 3).all()


def test_what_is_no_tensor() -> None:
    one, other = graph(3, 4), graph(2, 2)
    one.name, other.name, one.level, other.level = "m", "n", 2, 4
    batch = FixedSizeCollater(FixedSizeOptions(9, 9, 3, pad_graph_defaults={"name": "pad"}))([one, other])
    assert batch.name == ["m", "n", "pad"]
    assert batch.level.tolist() == [2, 4, 2]
    assert "name" not in FixedSizeCollater(FixedSizeOptions(9, 9, 3), exclude_keys=["name"])([one, other])


@pytest.mark.parametrize("real", [2, 6])
def test_graphs_with_types(real: int) -> None:
    graphs = [hetero(3 + i, 2, i + 1) for i in range(real)]
    options = FixedSizeOptions({"paper": 40, "author": 15}, 30, 6 if real < 6 else 7, **VALUES)
    batch = FixedSizeCollater(options, add_masks_to_batch=True)(graphs)
    assert options.num_edges == {PATH: 30, WRITES: 30}
    papers = sum(g["paper"].num_nodes for g in graphs)
    assert torch.equal(batch["paper"].x[:papers], torch.cat([g["paper"].x for g in graphs]))
    assert (batch["paper"].x[papers:] == 22).all()
    assert batch["author"].num_nodes == 15
    assert torch.equal(batch["author"].nodes_mask, torch.arange(15) < 2 * real)
    index = batch[WRITES].edge_index
    assert index.shape == (2, 30)
    assert (index[0, 3 * real :] >= 2 * real).all()
    assert (index[1, 3 * real :] >= papers).all()
    assert (index[0] < 15).all()
    assert (index[1] < 40).all()
    assert (batch.u[real:] == 55).all()
    assert batch.graphs_mask.sum() == real


def test_full_batches_have_full_masks() -> None:
    graphs = [hetero(3, 2, 1), hetero(3, 2, 2)]
    options = FixedSizeOptions({"paper": 6, "author": 4}, {PATH: 8, WRITES: 6}, 2)
    batch = FixedSizeCollater(options, add_masks_to_batch=True)(graphs)
    masks = [batch["paper"].nodes_mask, batch["author"].nodes_mask, batch[PATH].edges_mask, batch.graphs_mask]
    assert all(mask.all() for mask in masks)


def test_edges_without_a_node_for_padding() -> None:
    graphs = dataset(3)
    nodes = sum(g.num_nodes for g in graphs)
    batch = FixedSizeCollater(FixedSizeOptions(nodes, 40, 4), add_masks_to_batch=True)(graphs)
    assert (batch.edge_index[:, ~batch.edges_mask] == nodes - 1).all()


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "graphs", "error", "phrase"),
    [
        ((20, 20, 2), [graph(2, 2)] * 3, RuntimeError, "The maximum number of graphs requested doesn't allocate"),
        ((5, 20, 3), [graph(3, 2)] * 2, RuntimeError, "space for the number of nodes .*number of nodes.*trim_nodes"),
        ((9, 3, 3), [graph(3, 2)] * 2, RuntimeError, "enough space for the number of edges .*trim_edges"),
        ((9, 9, 2), [graph(3, 2)] * 2, RuntimeError, "cannot create additional graphs to pad nodes and edges"),
        ((9, 9, 3), (graph(3, 2),), TypeError, "Expected list, got tuple."),
        ((9, 9, 3), [TemporalData()], ValueError, "Unsupported data type"),
        ((9, 9, 3), [graph(3, 2), hetero()], AssertionError, "must be Data, or all HeteroData"),
        ((9, 9, 3), [Data(x=torch.ones(3, 1), y=torch.ones(2))], AssertionError, "Incorrect input data"),
        (({"paper": 9}, {PATH: 9, WRITES: 9}, 3), [hetero()], AssertionError, "exists in the data but not in the"),
        (({"paper": 2, "author": 9}, 9, 3), [hetero()], RuntimeError, "number of paper nodes"),
    ],
)  # fmt: skip
def test_refusals(options: Any, graphs: Any, error: type[Exception], phrase: str) -> None:
    with pytest.raises(error, match=phrase):
        FixedSizeCollater(FixedSizeOptions(*options))(graphs)


def test_sparse_adjacency_is_refused() -> None:
    sparse = graph(3, 2)
    sparse.adj_t = torch.eye(3).to_sparse()
    with pytest.raises(ValueError, match=r"'adj_t' of the graph is sparse.*edge_index"):
        FixedSizeCollater(FixedSizeOptions(9, 9, 3))([sparse])


# -- trimming ----------------------------------------------------------------------------------------------------------


def test_trimmed_batches_have_the_fixed_size() -> None:
    torch.manual_seed(0)
    collater = FixedSizeCollater(FixedSizeOptions(9, 8, 4), trim_nodes=True, trim_edges=True, add_masks_to_batch=True)
    for number in range(30):
        graphs = [graph(5, 4 + number % 9, 3 * number + i) for i in range(3)]
        batch = collater(graphs)
        assert (batch.num_nodes, batch.num_edges) == (9, 8)
        assert (batch.edge_index < 9).all()
        real = batch.edge_index[:, batch.edges_mask]
        assert batch.nodes_mask[real].all()
        if not batch.edges_mask.all():  # padded edges have a node of their own
            assert not batch.nodes_mask[batch.edge_index[:, ~batch.edges_mask]].any()


def test_what_is_left_of_a_trimmed_graph_is_as_it_was() -> None:
    whole = graph(6, 12)
    whole.n_id = torch.arange(6)
    (left,) = FixedSizeCollater(FixedSizeOptions(4, 99, 2))._prune_nodes([whole])
    assert torch.equal(left.x, whole.x[left.n_id])
    assert (left.n_id.diff() > 0).all()
    kept = {(int(a), int(b)) for a, b in whole.edge_index.t() if a in left.n_id and b in left.n_id}
    assert {(int(left.n_id[a]), int(left.n_id[b])) for a, b in left.edge_index.t()} == kept


def test_pruning_keeps_something_of_each_graph() -> None:
    graphs = [graph(1, 1), graph(8, 20), graph(2, 1)]
    collater = FixedSizeCollater(FixedSizeOptions(5, 6, 4))
    assert [sum(g.num_nodes for g in collater._prune_nodes(graphs)) for _ in range(5)] == [5] * 5
    assert all(g.num_nodes for g in collater._prune_nodes(graphs))
    pruned = collater._prune_edges(graphs)
    assert sum(g.num_edges for g in pruned) == 6
    assert all(g.num_edges for g in pruned)
    with pytest.raises(RuntimeError, match="which would result in empty graphs"):
        FixedSizeCollater(FixedSizeOptions(2, 6, 4), trim_nodes=True)(graphs)


def test_trimming_repeats_with_the_seed() -> None:
    collater = FixedSizeCollater(FixedSizeOptions(5, 99, 2), trim_nodes=True)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(collater([graph(20, 30)]).x)
    assert torch.equal(*results)


# -- several at once ---------------------------------------------------------------------------------------------------


def test_slices_are_joined_along_the_first_dimension() -> None:
    graphs = dataset(6)
    single = FixedSizeCollater(FixedSizeOptions(22, 43, 4), add_masks_to_batch=True)
    whole = CombinedBatchingCollater(single, 3)(graphs)
    parts = [single(graphs[:3]), single(graphs[3:])]
    for name in ("x", "edge_index", "edge_attr", "y", "batch", "ptr", "graphs_mask", "nodes_mask", "edges_mask"):
        assert torch.equal(whole[name], torch.cat([part[name] for part in parts]))
    assert (whole.num_graphs, whole.num_nodes, whole.num_edges) == (4, 22, 43)
    assert {"num_nodes", "num_edges"} <= set(whole.keys())
    with pytest.raises(RuntimeError, match="Cannot reconstruct"):
        whole.to_data_list()
    with pytest.raises(AssertionError, match="Invalid batch size"):
        CombinedBatchingCollater(single, 4)(graphs)


def test_slices_of_graphs_with_types() -> None:
    single = FixedSizeCollater(FixedSizeOptions(9, 9, 2), add_masks_to_batch=True)
    whole = CombinedBatchingCollater(single, 1)([hetero(3, 2, 1), hetero(4, 2, 2)])
    assert isinstance(whole, HeteroData)
    assert (whole.num_graphs, whole.num_nodes, whole.num_edges) == (2, 18, 18)
    assert whole["paper"].x.shape == (18, 2)
    assert set(whole.node_types) == {"paper", "author"}


def test_keys_to_leave_out() -> None:
    assert set(make_exclude_keys(["x", "y"], graph(2, 2))) == {"edge_index", "edge_attr"}
    assert "num_nodes" in make_exclude_keys(["x"], hetero())


def test_the_arguments_of_release_3_2() -> None:
    batch = FixedSizeCollater(num_nodes=9, num_edges=9, node_pad_value=22, add_masks_to_batch=True)([graph(3, 2)] * 2)
    assert batch.num_graphs == 3
    assert (batch.x[6:] == 22).all()
    assert FixedSizeCollater(9, 9, 5)([graph(3, 2)]).num_graphs == 5
