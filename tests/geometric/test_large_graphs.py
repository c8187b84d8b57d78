"""Loaders of parts of a large graph: clusters, and samples of neighbours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import poptorch
from poptorch_geometric import FixedSizeOptions, OverSizeStrategy, cluster_loader, neighbor_loader, pyg_cluster_loader
from poptorch_geometric.cluster_loader import FixedSizeClusterLoader
from poptorch_geometric.clusters import BreadthFirstClusterData
from poptorch_geometric.neighbor_loader import FixedSizeNeighborLoader, PyGFixedSizeNeighborLoader

torch.manual_seed(0)
NODES = 60
BIG = Data(
    x=torch.arange(2.0 * NODES).reshape(NODES, 2) + 1,
    edge_index=torch.randint(0, NODES, (2, 400)),
    edge_attr=torch.arange(400.0).reshape(400, 1) + 1,
    y=torch.arange(NODES),
)


class Clusters:
    """What PyG makes with METIS: the nodes in five groups of twelve, and the edges by their source."""

    def __init__(self) -> None:
        order = BIG.edge_index[0].argsort(stable=True)
        row, col = BIG.edge_index[:, order]
        indptr = torch.zeros(NODES + 1, dtype=torch.int64)
        indptr[1:] = torch.bincount(row, minlength=NODES).cumsum(0)
        self.data = Data(x=BIG.x, y=BIG.y, edge_attr=BIG.edge_attr[order], num_nodes=NODES)
        self.partition = SimpleNamespace(
            indptr=indptr, index=col, partptr=torch.arange(0, NODES + 1, 12), sparse_format="csr"
        )

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize(("clusters", "factor"), [(1, 1), (2, 2)])
def test_clusters(clusters: int, factor: int) -> None:
    sizes = FixedSizeOptions(12 * clusters + 3, 200, 2, node_pad_value=0)
    options = poptorch.Options().deviceIterations(factor)
    loader = FixedSizeClusterLoader(Clusters(), sizes, clusters, options=options)
    batches = list(loader)
    assert len(batches) == len(loader) == 5 // (clusters * factor)
    for number, batch in enumerate(batches):
        assert batch.x.shape == ((12 * clusters + 3) * factor, 2)
        first = 12 * clusters * factor * number
        assert torch.equal(batch.x[batch.nodes_mask], BIG.x[first : first + 12 * clusters * factor])
    inside = (batches[0].edges_mask[:200]).sum()
    own = (BIG.edge_index < 12 * clusters).all(0).sum()
    assert inside == own


def test_arguments_of_cluster_loaders() -> None:
    plain = pyg_cluster_loader.FixedSizeClusterLoader
    assert FixedSizeClusterLoader.__mro__[1:3] == (plain, poptorch.DataLoader)
    assert cluster_loader.__all__ == ["FixedSizeClusterLoader"]
    with pytest.raises(AssertionError, match="must be 2 when using"):
        FixedSizeClusterLoader(Clusters(), FixedSizeOptions(20, 20, 3))
    for name in ("collate_fn", "batch_sampler", "exclude_keys"):
        with pytest.raises(AssertionError, match="does not support the following arguments"):
            FixedSizeClusterLoader(Clusters(), FixedSizeOptions(20, 20), **{name: None})
    strict = poptorch.Options().strictCompatibility(True)
    with pytest.raises(AssertionError, match="does not support the following arguments"):
        FixedSizeClusterLoader(Clusters(), FixedSizeOptions(20, 20), shuffle=True, options=strict)
    former = plain(Clusters(), 20, collater_args={"num_edges": 200, "add_masks_to_batch": True})
    assert {int(batch.nodes_mask.sum()) for batch in former} == {12}
    trimmed = FixedSizeClusterLoader(Clusters(), FixedSizeOptions(8, 9))
    assert {(batch.num_nodes, batch.num_edges) for batch in trimmed} == {(8, 9)}


def test_clusters_without_a_library() -> None:
    grid = torch.arange(100).reshape(10, 10)
    edges = torch.stack([torch.cat([grid[:, :-1].flatten(), grid[:-1].flatten()]),
                         torch.cat([grid[:, 1:].flatten(), grid[1:].flatten()])])  # fmt: skip
    data = Data(x=torch.arange(100.0).reshape(100, 1), edge_index=edges, edge_attr=torch.arange(180.0))
    clusters = BreadthFirstClusterData(data, num_parts=5)
    batches = list(FixedSizeClusterLoader(clusters, FixedSizeOptions(24, 90)))
    nodes = [batch.x[batch.nodes_mask].flatten().long() for batch in batches]
    assert sorted(torch.cat(nodes).tolist()) == list(range(100))
    for own, batch in zip(nodes, batches, strict=True):
        assert len(own) == 20
        inside = batch.edge_index[:, batch.edges_mask]
        assert torch.equal(own[inside], edges[:, batch.edge_attr[batch.edges_mask].long()])
        assert inside.shape[1] == sum(bool(torch.isin(edge, own).all()) for edge in edges.t())
    assert sum(int(batch.edges_mask.sum()) for batch in batches) > 100  # most neighbours stay together


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("kind", ["directional", "induced", "bidirectional"])
def test_samples_of_neighbours(kind: str, disjoint: bool) -> None:
    torch.manual_seed(1)
    sizes = FixedSizeOptions(60, 300, 2, node_pad_value=0)
    loader = PyGFixedSizeNeighborLoader(
        BIG, [3, 2], torch.arange(5, 45), batch_size=4, subgraph_type=kind, disjoint=disjoint,
        fixed_size_options=sizes, add_pad_masks=True,
    )  # fmt: skip
    native = loader.nativeCollate([0, 1, 2, 3])
    assert torch.equal(native.n_id[:4], torch.arange(5, 9))
    assert disjoint or len(native.n_id.unique()) == native.num_nodes
    ends = native.n_id[native.edge_index]
    known = {(int(a), int(b)) for a, b in BIG.edge_index.t()}
    back = {(b, a) for a, b in known} if kind == "bidirectional" else set()
    assert all((int(a), int(b)) in known | back for a, b in ends.t())
    if kind != "bidirectional":
        assert torch.equal(ends, BIG.edge_index[:, native.e_id])
        assert torch.equal(native.edge_attr, BIG.edge_attr[native.e_id])
    if kind == "directional":
        counts = torch.bincount(native.edge_index[1], minlength=native.num_nodes)
        assert (counts[:4] <= 3).all()
        assert (counts <= 3).all()
    batch = loader.fixedSizeCollate(native)
    assert torch.equal(batch.x[:4], BIG.x[5:9])
    assert torch.equal(batch.x[: native.num_nodes], native.x)
    assert not batch.n_id[native.num_nodes :].any()
    assert (batch.edge_index < 60).all()
    assert batch["batch_size"] == 4
    assert torch.equal(batch.input_id, torch.arange(4))
    assert batch.batch.unique().tolist() == [0, 1]


def test_all_neighbours_and_as_many_as_there_are() -> None:
    chain = Data(x=torch.ones(5, 1), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    sizes = FixedSizeOptions(9, 9)
    for count in (-1, 7):
        loader = PyGFixedSizeNeighborLoader(chain, [count, count], torch.tensor([4]), fixed_size_options=sizes)
        native = loader.nativeCollate([0])
        assert native.n_id.tolist() == [4, 3, 2]
        assert native.edge_index.tolist() == [[1, 2], [0, 1]]
    replaced = PyGFixedSizeNeighborLoader(chain, [3], torch.tensor([4]), replace=True, fixed_size_options=sizes)
    assert replaced.nativeCollate([0]).e_id.tolist() == [3, 3, 3]


def test_batches_for_a_call() -> None:
    sizes = FixedSizeOptions(40, 60, 2)
    options = poptorch.Options().deviceIterations(2)
    loader = FixedSizeNeighborLoader(
        BIG, [3, 2], torch.arange(40), batch_size=4, fixed_size_options=sizes, options=options
    )
    assert FixedSizeNeighborLoader.__mro__[1:3] == (PyGFixedSizeNeighborLoader, poptorch.DataLoader)
    assert neighbor_loader.__all__ == ["FixedSizeNeighborLoader", "PyGFixedSizeNeighborLoader"]
    batches = list(loader)
    assert len(loader) == len(batches) == 5
    for number, batch in enumerate(batches):
        assert batch.x.shape == (80, 2)
        assert torch.equal(batch.input_id, torch.arange(8 * number, 8 * number + 8))
        assert batch["batch_size"] == 4
        for part in (0, 1):
            first = 8 * number + 4 * part
            assert torch.equal(batch.x[40 * part : 40 * part + 4], BIG.x[first : first + 4])


def test_trimming_never_leaves_out_seeds() -> None:
    sizes = FixedSizeOptions(6, 8, 2)
    loader = FixedSizeNeighborLoader(BIG, [-1, -1], torch.arange(40), batch_size=4, fixed_size_options=sizes)
    for number, batch in enumerate(loader):
        assert torch.equal(batch.x[:4], BIG.x[4 * number : 4 * number + 4])
    few = FixedSizeNeighborLoader(BIG, [2], torch.arange(8), batch_size=4, fixed_size_options=FixedSizeOptions(3, 8, 2))
    with pytest.raises(RuntimeError, match="without their first nodes"):
        next(iter(few))
    strict = FixedSizeNeighborLoader(
        BIG, [-1], torch.arange(8), batch_size=4, fixed_size_options=sizes, over_size_strategy=OverSizeStrategy.Error
    )
    with pytest.raises(RuntimeError, match="enough space for the number of nodes"):
        next(iter(strict))


def two_types() -> HeteroData:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.rand(30, 2), torch.rand(20, 3)
    data["a"].y = torch.arange(30)
    data["a", "to", "b"].edge_index = torch.stack([torch.randint(0, 30, (90,)), torch.randint(0, 20, (90,))])
    data["b", "back", "a"].edge_index = torch.stack([torch.randint(0, 20, (90,)), torch.randint(0, 30, (90,))])
    return data


def test_graphs_with_types() -> None:
    data = two_types()
    loader = FixedSizeNeighborLoader(data, [3, 2], ("a", torch.arange(10)), batch_size=5)
    assert loader.fixed_size_options.is_hetero()
    batches = list(loader)
    assert len(batches) == 2
    for number, batch in enumerate(batches):
        assert batch["a"].batch_size == 5
        assert torch.equal(batch["a"].y[:5], torch.arange(5 * number, 5 * number + 5))
    native = loader.nativeCollate([0, 1])
    for kind in data.edge_types:
        source, _, target = kind
        row, col = native[kind].edge_index
        expected = data[kind].edge_index[:, native[kind].e_id]
        assert torch.equal(torch.stack([native[source].n_id[row], native[target].n_id[col]]), expected)
    counts: Any = {("a", "to", "b"): [2, 2], ("b", "back", "a"): [2]}
    with pytest.raises(ValueError, match="hops must be the same across all"):
        FixedSizeNeighborLoader(data, counts, ("a", None), fixed_size_options=FixedSizeOptions(50, 50))


def test_what_needs_a_library() -> None:
    timed = BIG.clone()
    timed.time = torch.arange(NODES)
    with pytest.raises(NotImplementedError, match="need pyg-lib"):
        FixedSizeNeighborLoader(timed, [2], torch.arange(4), time_attr="time", fixed_size_options=FixedSizeOptions(9))
