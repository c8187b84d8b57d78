"""Loaders: micro-batches of fixed size, as many as a call consumes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch_geometric.loader import DataLoader as PyGDataLoader

import poptorch
from poptorch_geometric import (
    FixedSizeDataLoader,
    FixedSizeOptions,
    FixedSizeStrategy,
    OverSizeStrategy,
    dataloader,
    pyg_dataloader,
)
from poptorch_geometric.batch_sampler import FixedBatchSampler, make_fixed_batch_generator
from poptorch_geometric.collate import CombinedBatchingCollater, FixedSizeCollater
from poptorch_geometric.stream_packing_sampler import StreamPackingSampler
from poptorch_geometric.utils import AttributeTypeCache
from pyg_graphs import dataset, graph, hetero

Pad, Pack = FixedSizeStrategy.PadToMax, FixedSizeStrategy.StreamPack


def test_classes() -> None:
    for name in ("DataLoader", "FixedSizeDataLoader"):
        ours, plain = getattr(dataloader, name), getattr(pyg_dataloader, name)
        assert ours.__mro__[:4] == (ours, plain, poptorch.DataLoader, torch.utils.data.DataLoader)
        assert plain.__mro__[1] is torch.utils.data.DataLoader


@pytest.mark.parametrize("strategy", [Pad, Pack])
@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize("labels", ["graph", "node"])
def test_every_batch_has_the_same_shapes(strategy: FixedSizeStrategy, factor: int, labels: str) -> None:
    graphs = dataset(23, labels)
    options = poptorch.Options().deviceIterations(factor)
    loader = FixedSizeDataLoader(graphs, 4, fixed_size_strategy=strategy, options=options)
    sizes = loader.fixed_size_options
    seen: list[torch.Tensor] = []
    for batch in loader:
        assert batch.x.shape == (sizes.num_nodes * factor, 3)
        assert batch.edge_index.shape == (2 * factor, sizes.num_edges)
        assert batch.y.shape == ((4 if labels == "graph" else sizes.num_nodes) * factor,)
        assert (batch.num_graphs, batch.num_nodes) == (4, sizes.num_nodes)
        assert batch.ptr.shape == (5 * factor,)
        seen += batch.x[batch.nodes_mask]
    expected = torch.cat([g.x for g in graphs])[: len(seen)]
    assert torch.equal(torch.stack(seen), expected)
    assert len(loader) == 23 // (3 * factor) if strategy is Pad else True


@pytest.mark.parametrize("factor", [1, 3])
def test_the_last_batch_is_filled_up(factor: int, capfd: pytest.CaptureFixture[str]) -> None:
    options = poptorch.Options().deviceIterations(factor)
    batches = list(FixedSizeDataLoader(dataset(23), 4, options=options, drop_last=False))
    assert {tuple(batch.x.shape) for batch in batches} == {tuple(batches[0].x.shape)}
    assert sum(int(batch.graphs_mask.sum()) for batch in batches) == 23
    assert "smaller" not in capfd.readouterr().err
    plain = list(pyg_dataloader.FixedSizeDataLoader(dataset(23), 4))
    assert len(plain) == 8
    assert {batch.num_nodes for batch in plain} == {22}


def test_too_large_graphs() -> None:
    graphs, small = dataset(12), FixedSizeOptions(12, 20, 4)

    def loaded(over_size: OverSizeStrategy, strategy: FixedSizeStrategy = Pad, sizes: Any = small) -> list[int]:
        loader = FixedSizeDataLoader(
            graphs, 4, fixed_size_options=sizes, fixed_size_strategy=strategy, over_size_strategy=over_size
        )
        return [int(batch.graphs_mask.sum()) for batch in loader]

    with pytest.raises(RuntimeError, match="enough space for the number of edges"):
        loaded(OverSizeStrategy.Error)
    assert loaded(OverSizeStrategy.Skip) == [2, 2, 2, 2]
    assert loaded(OverSizeStrategy.TrimNodesAndEdges) == [3] * 4
    tiny = FixedSizeOptions(6, 10, 4)
    with pytest.raises(RuntimeError, match=r"too small to fit in the single sample.*allow_skip_data"):
        loaded(OverSizeStrategy.Error, Pack, tiny)
    assert sum(loaded(OverSizeStrategy.Skip, Pack, tiny)) == 3
    assert sum(loaded(OverSizeStrategy.TrimNodesAndEdges, Pack, tiny)) == 12
    with pytest.raises(RuntimeError, match="None of the 3 graphs"):
        loaded(OverSizeStrategy.Skip, Pad, FixedSizeOptions(2, 2, 4))


def test_graphs_with_types() -> None:
    graphs = [hetero(3 + i, 2, i + 1) for i in range(6)]
    batches = list(FixedSizeDataLoader(graphs, 3))
    assert len(batches) == 3
    assert {tuple(b["paper"].x.shape) for b in batches} == {(8 * 2 + 1, 2)}
    small = FixedSizeOptions({"paper": 6, "author": 9}, 20, 3)
    with pytest.raises(RuntimeError, match="number of paper nodes"):
        list(FixedSizeDataLoader(graphs, 3, fixed_size_options=small))
    trimmed = FixedSizeDataLoader(
        graphs, 3, fixed_size_options=small, over_size_strategy=OverSizeStrategy.TrimNodesAndEdges
    )
    assert {tuple(b["paper"].x.shape) for b in trimmed} == {(6, 2)}


def test_refusals() -> None:
    graphs = dataset(6)
    with pytest.raises(AssertionError, match="`num_graphs` in fixed size options must match"):
        FixedSizeDataLoader(graphs, 4, fixed_size_options=FixedSizeOptions(9, 9, 3))
    with pytest.raises(AssertionError, match="Cannot set `collate_fn`"):
        FixedSizeDataLoader(graphs, 4, collate_fn=list)
    with pytest.raises(ValueError, match="is incompatible with the provided batch_sampler"):
        FixedSizeDataLoader(graphs, 4, fixed_size_strategy=Pack, batch_sampler=[[0]])
    with pytest.raises(NotImplementedError, match="is not a supported strategy"):
        FixedSizeDataLoader(graphs, 4, fixed_size_strategy="pad")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 2"):
        FixedSizeDataLoader(graphs, 1)


def test_batch_samplers_and_collaters_of_the_user() -> None:
    graphs = dataset(10)
    loader = FixedSizeDataLoader(graphs, 4, batch_sampler=[[0, 1], [2, 3], [4], [5, 6, 7], [8, 9]])
    assert [int(b.graphs_mask.sum()) for b in loader] == [2, 2, 1, 3, 2]

    class Named(FixedSizeDataLoader):
        def _create_collater(self, **collater_args: Any) -> Any:
            inner = super()._create_collater(**collater_args)

            def collate(graphs: list[Any]) -> Any:
                batch = inner(graphs)
                batch.extra = torch.ones(1)
                return batch

            return collate

    assert "extra" in next(iter(Named(graphs[:3], 4)))


def test_the_plain_loader_gives_pyg_s_batches() -> None:
    graphs = [graph(4, 6, i + 1) for i in range(8)]
    options = poptorch.Options().deviceIterations(2)
    loader = dataloader.DataLoader(graphs, 2, options=options)
    assert loader.batch_size == 4
    expected = list(PyGDataLoader(graphs, 2))
    for index, batch in enumerate(loader):
        for name in ("x", "edge_index", "y", "batch", "ptr"):
            parts = [part[name] for part in expected[2 * index : 2 * index + 2]]
            assert torch.equal(batch[name], torch.cat(parts))
    plain = next(iter(pyg_dataloader.DataLoader(graphs, 2, collate_fn=list)))
    assert [g.y.item() for g in plain.to_data_list()] == [1, 2]


def test_workers_and_processes_and_pickles() -> None:
    loader = FixedSizeDataLoader(dataset(12), 4, num_workers=1, mode=poptorch.DataLoaderMode.Async)
    plain = list(FixedSizeDataLoader(dataset(12), 4))
    try:
        for batch, other in zip(loader, plain, strict=True):
            assert torch.equal(batch.x, other.x)
            assert batch.num_graphs == 4
    finally:
        loader.terminate()
    again = pickle.loads(pickle.dumps(plain[0]))
    assert torch.equal(again.x, plain[0].x)
    assert again.num_graphs == 4


# -- packing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "edges", "graphs", "count"),
    [(0, None, 11, 10), (1, 1, 101, 1), (1, 1, 100, 2), (0, 1, 101, 2), (1, 0, 101, 2)],
)
def test_batches_of_packed_graphs(nodes: int, edges: int | None, graphs: int, count: int) -> None:
    data = dataset(100)
    all_nodes, all_edges = sum(g.num_nodes for g in data), sum(g.num_edges for g in data)
    options = FixedSizeOptions(all_nodes + nodes, None if edges is None else all_edges + edges, graphs)
    loader = FixedSizeDataLoader(data, graphs, fixed_size_options=options, fixed_size_strategy=Pack)
    assert len(list(loader)) == count
    assert len(loader) == count


def test_the_sampler() -> None:
    data = dataset(20)
    sampler = StreamPackingSampler(data, 4, max_num_nodes=16, max_num_edges=40)
    batches = list(sampler)
    assert [i for batch in batches for i in batch] == list(range(20))
    assert len(sampler) == len(batches)
    for batch in batches:
        free = 4 - len(batch)
        assert sum(data[i].num_nodes for i in batch) + free <= 16
    assert list(StreamPackingSampler(data, 2, base_sampler=iter([3, 1, 2]))) == [[3, 1], [2]]
    shuffled = StreamPackingSampler(data, 4, base_sampler=torch.utils.data.RandomSampler(data))
    with pytest.raises(TypeError, match="cannot be determined"):
        len(shuffled)
    assert sorted(i for batch in list(shuffled) for i in batch) == list(range(20))


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({"max_num_graphs": 0}, "Invalid value for max_num_graphs"),
        ({"max_num_graphs": 4, "max_num_nodes": 3}, "Invalid value for max_num_nodes"),
        ({"max_num_graphs": 4, "base_sampler": []}, "the length of the sampler must be greater than 0"),
    ],
)
def test_wrong_limits(arguments: dict[str, Any], phrase: str) -> None:
    with pytest.raises(ValueError, match=phrase):
        StreamPackingSampler(dataset(5), **arguments)


def test_full_batches_of_a_sampler_in_a_loader_of_torch() -> None:
    data = [graph(4, 6, i + 1) for i in range(100)]
    sampler = StreamPackingSampler(data, 10, max_num_nodes=40, max_num_edges=60)
    collater = FixedSizeCollater(FixedSizeOptions(40, 60, 10), add_masks_to_batch=True)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=CombinedBatchingCollater(collater))
    assert [int(batch.graphs_mask.sum()) for batch in loader] == [10] * 10


def test_the_names_of_release_3_2() -> None:
    data = dataset(20)
    packed = FixedSizeDataLoader(
        data, num_nodes=30, num_edges=60, batch_size=5, collater_args={"add_masks_to_batch": True}, sampler=range(20)
    )
    assert sum(int(batch.graphs_mask.sum()) for batch in packed) == 20
    assert {batch.num_nodes for batch in packed} == {30}
    assert "graphs_mask" not in next(iter(FixedSizeDataLoader(data, num_nodes=30, batch_size=5)))
    custom = dataloader.CustomFixedSizeDataLoader(data, batch_size=5)
    assert {batch.num_nodes for batch in custom} == {29}
    with pytest.raises(AssertionError, match="`num_nodes` belongs to the loader"):
        dataloader.CustomFixedSizeDataLoader(data, collater_args={"num_nodes": 3})
    cache = AttributeTypeCache()
    assert cache.is_node_attr(data[0], "x")
    assert cache.is_edge_attr(data[0], "edge_index")
    assert not cache.is_node_attr(data[0], "edge_index")
    sampler = FixedBatchSampler(data, 4, 28, 60, sampler=range(20))
    batches = list(make_fixed_batch_generator(sampler))
    assert {(b.num_graphs, b.num_nodes, b.num_edges) for b in batches} == {(5, 29, 61)}
    with pytest.raises(ValueError, match=r"parameter `num_graphs` \(= 3\) should be greater"):
        next(make_fixed_batch_generator(sampler, num_graphs=3))
