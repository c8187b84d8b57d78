"""Clusters of a large graph without METIS: an extension."""

from __future__ import annotations

from collections import deque

import torch
from torch_geometric.loader import ClusterData

__all__ = ["BreadthFirstClusterData"]


class BreadthFirstClusterData(ClusterData):
    """PyG's ``ClusterData`` with parts of equal size, found by a walk from neighbour to neighbour.

    Nodes that are near each other come into one part. METIS cuts fewer edges, but needs a library.

    >>> from torch_geometric.data import Data
    >>> ring = Data(x=torch.arange(6.0), edge_index=torch.stack([torch.arange(6), torch.arange(1, 7) % 6]))
    >>> [part.num_nodes for part in BreadthFirstClusterData(ring, num_parts=2)]
    [3, 3]
    """

    def _metis(self, edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
        order = torch.tensor(_breadth_first(edge_index, num_nodes), dtype=torch.int64)
        cluster = torch.empty(num_nodes, dtype=torch.int64)
        cluster[order] = torch.arange(num_nodes) * int(self.num_parts) // max(num_nodes, 1)
        return cluster


def _breadth_first(edge_index: torch.Tensor, num_nodes: int) -> list[int]:
    """All nodes, each after one of its neighbours where it has any that came before; edges count both ways."""
    ends = torch.cat([edge_index, edge_index.flip(0)], 1)
    neighbours = ends[1][ends[0].argsort(stable=True)].tolist()
    starts = torch.bincount(ends[0], minlength=num_nodes).cumsum(0).tolist()
    order: list[int] = []
    seen = [False] * num_nodes
    for first in range(num_nodes):
        waiting = deque([] if seen[first] else [first])
        seen[first] = True
        while waiting:
            node = waiting.popleft()
            order.append(node)
            for other in neighbours[starts[node - 1] if node else 0 : starts[node]]:
                if not seen[other]:
                    seen[other] = True
                    waiting.append(other)
    return order
