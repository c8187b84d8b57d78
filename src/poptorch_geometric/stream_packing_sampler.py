"""Batches of as many graphs as fit, in the order of the stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler

__all__ = ["StreamPackingSampler"]


class LengthUnknown(NotImplementedError, TypeError):
    """A length that another order would change. ``list()`` and progress bars ask, and go on without it."""


class StreamPackingSampler(torch.utils.data.Sampler[list[int]]):
    """Yields lists of indices of graphs that fit together into the given limits, which are those of real graphs.

    A graph that does not fit closes the open batch. For every graph slot that is not used, one node and one edge stay
    free, so that padding graphs find theirs.
    """

    def __init__(
        self,
        data_source: Any,
        max_num_graphs: int,
        max_num_nodes: int | None = None,
        max_num_edges: int | None = None,
        base_sampler: Iterable[int] | None = None,
        allow_skip_data: bool = False,
    ) -> None:
        self.data_source = data_source
        base: Any = SequentialSampler(data_source) if base_sampler is None else base_sampler
        self.base_sampler = base
        try:
            is_empty = len(base) == 0
        except TypeError:
            is_empty = False
        if is_empty:
            raise ValueError("For the base sampler, the length of the sampler must be greater than 0, and it is 0.")
        if max_num_graphs is None or max_num_graphs < 1:
            raise ValueError(f"Invalid value for max_num_graphs: {max_num_graphs}. It must be at least 1.")
        self.max_num_graphs = max_num_graphs
        if max_num_nodes is None:
            max_num_nodes = max(_nodes(data_source[i]) for i in range(len(data_source))) * max_num_graphs
        if max_num_edges is None:
            max_num_edges = max(_edges(data_source[i]) for i in range(len(data_source))) * max_num_graphs
        self.max_num_nodes = max_num_nodes
        self.max_num_edges = max_num_edges
        self.allow_skip_data = allow_skip_data
        for name in ("max_num_nodes", "max_num_edges"):
            if getattr(self, name) < max_num_graphs:
                raise ValueError(
                    f"Invalid value for {name}: {getattr(self, name)}. It must be at least max_num_graphs, "
                    f"{max_num_graphs}."
                )
        self._trims = False
        self._length: int | None = None

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        left = self._all()
        for index in self.base_sampler:
            graph = self.data_source[int(index)]
            size = (_nodes(graph), _edges(graph))
            after = _less(left, size)
            if batch and not _fits(after):
                yield batch
                batch, left = [], self._all()
                after = _less(left, size)
            if _fits(after):
                batch.append(int(index))
                left = after
            elif self._trims:
                yield [int(index)]
            elif not self.allow_skip_data:
                raise RuntimeError(
                    f"The limits are too small to fit in the single sample {int(index)}, with {size[0]} nodes and "
                    f"{size[1]} edges: max_num_nodes is {self.max_num_nodes}, max_num_edges {self.max_num_edges} and "
                    f"max_num_graphs {self.max_num_graphs}. Raise them, or leave such graphs out with "
                    "allow_skip_data=True."
                )
        if batch:
            yield batch

    def _all(self) -> tuple[int, int, int]:
        return self.max_num_nodes, self.max_num_edges, self.max_num_graphs

    def __len__(self) -> int:
        if self._length is None:
            base: Any = self.base_sampler
            if isinstance(base, (RandomSampler, Iterator)):  # another order, or none left, the next time
                raise LengthUnknown(
                    "The number of batches cannot be determined: it depends on the order of the base sampler, a "
                    f"{type(base).__name__}."
                )
            self._length = sum(1 for _ in self)
        return self._length


def _less(left: tuple[int, int, int], size: tuple[int, int]) -> tuple[int, int, int]:
    return left[0] - size[0], left[1] - size[1], left[2] - 1


def _fits(left: tuple[int, int, int]) -> bool:
    nodes, edges, graphs = left
    return graphs >= 0 and nodes >= graphs and edges >= graphs


def _nodes(graph: Any) -> int:
    return int(graph.num_nodes)


def _edges(graph: Any) -> int:
    return int(graph.num_edges)
