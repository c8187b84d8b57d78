"""``FixedSizeOptions``: numbers for graphs with and without types, and where they come from."""

from __future__ import annotations

import pytest
from torch_geometric.loader import DataLoader

from poptorch_geometric import FixedSizeOptions
from pyg_graphs import PATH, WRITES, dataset, hetero


def test_numbers_and_defaults() -> None:
    options = FixedSizeOptions(num_nodes=10)
    assert (options.num_edges, options.num_graphs, options.node_pad_value) == (90, 2, 0.0)
    assert FixedSizeOptions({"a": 2, "b": 3}).num_edges == 20
    with pytest.raises(ValueError, match="The number of graphs in the batch must be at least 2"):
        FixedSizeOptions(10, num_graphs=1)
    options = FixedSizeOptions(num_nodes=400, num_edges=800, num_graphs=10)
    assert repr(options) == (
        "FixedSizeOptions(num_nodes=400 (At least one node reserved for padding), num_edges=800 (At least one edge "
        "reserved for padding), num_graphs=10 (At least one graph reserved for padding), node_pad_value=0.0, "
        "edge_pad_value=0.0, graph_pad_value=0.0, pad_graph_defaults={})"
    )


def test_numbers_by_type() -> None:
    options = FixedSizeOptions(10, {PATH: 5, WRITES: 6})
    assert not options.is_hetero()
    assert options.to_hetero(["paper", "author"], [PATH, WRITES]) is options
    assert options.num_nodes == {"paper": 10, "author": 10}
    assert (options.total_num_nodes, options.total_num_edges) == (20, 11)
    options.num_nodes["paper"] = 30  # type: ignore[index]
    assert options.total_num_nodes == 40


def test_from_a_data_set() -> None:
    options = FixedSizeOptions.from_dataset(dataset(), 10)
    assert (options.num_nodes, options.num_edges, options.num_graphs) == (7 * 9 + 1, 14 * 9 + 1, 10)
    first = FixedSizeOptions.from_dataset(dataset(), 10, sample_limit=1)
    assert (first.num_nodes, first.num_edges) == (28, 55)
    by_type = FixedSizeOptions.from_dataset([hetero(3, 2), hetero(5, 1)], 3)
    assert by_type.num_nodes == {"paper": 11, "author": 5}
    assert by_type.num_edges == {PATH: 9, WRITES: 7}


def test_from_a_loader() -> None:
    options = FixedSizeOptions.from_loader(DataLoader(dataset(10), batch_size=5), sample_limit=7)
    assert (options.num_nodes, options.num_edges, options.num_graphs) == (26, 51, 6)
    with pytest.raises(ValueError, match="yields nothing"):
        FixedSizeOptions.from_loader([])
