"""Small graphs for the tests."""

from __future__ import annotations

import torch
from torch_geometric.data import Data, HeteroData


def graph(nodes: int, edges: int, number: int = 1, labels: str = "graph") -> Data:
    """A graph whose values begin at one, so that padding is seen."""
    generator = torch.Generator().manual_seed(number)
    return Data(
        x=torch.rand(nodes, 3, generator=generator) + 1,
        edge_index=torch.randint(0, nodes, (2, edges), generator=generator),
        edge_attr=torch.rand(edges, 2, generator=generator) + 1,
        y=torch.tensor([number]) if labels == "graph" else torch.arange(1, nodes + 1),
    )


def dataset(count: int = 23, labels: str = "graph") -> list[Data]:
    """Graphs of 3 to 7 nodes, with twice as many edges."""
    return [graph(3 + i % 5, 2 * (3 + i % 5), i + 1, labels) for i in range(count)]


PATH = ("paper", "cites", "paper")
WRITES = ("author", "writes", "paper")


def hetero(papers: int = 3, authors: int = 2, number: int = 1) -> HeteroData:
    """Papers with features, and authors of whom only the number is known."""
    generator = torch.Generator().manual_seed(number)
    data = HeteroData()
    data["paper"].x = torch.rand(papers, 2, generator=generator) + 1
    data["author"].num_nodes = authors
    data[PATH].edge_index = torch.randint(0, papers, (2, 4), generator=generator)
    data[PATH].edge_attr = torch.rand(4, 1, generator=generator) + 1
    data[WRITES].edge_index = torch.stack(
        [torch.randint(0, authors, (3,), generator=generator), torch.randint(0, papers, (3,), generator=generator)]
    )
    data.u = torch.full((1, 2), float(number))
    return data
