"""Names of release 3.2 for batches of graphs that fit together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import RandomSampler

from poptorch_geometric.collate import FixedSizeCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.stream_packing_sampler import StreamPackingSampler

__all__ = ["FixedBatchSampler", "make_fixed_batch_generator"]


class FixedBatchSampler(StreamPackingSampler):
    """A ``StreamPackingSampler`` with the names of before; the order is random unless a sampler is given."""

    def __init__(
        self,
        data_source: Any,
        num_graphs: int,
        num_nodes: int | None = None,
        num_edges: int | None = None,
        sampler: Iterable[int] | None = None,
        allow_skip_data: bool = False,
    ) -> None:
        base = RandomSampler(data_source) if sampler is None else sampler
        super().__init__(data_source, num_graphs, num_nodes, num_edges, base, allow_skip_data)

    @property
    def num_graphs(self) -> int:
        """The most graphs of a batch."""
        return self.max_num_graphs

    @property
    def num_nodes(self) -> int:
        """The most nodes of a batch."""
        return self.max_num_nodes

    @property
    def num_edges(self) -> int:
        """The most edges of a batch."""
        return self.max_num_edges


def make_fixed_batch_generator(
    batch_sampler: Any,
    data_source: Any = None,
    num_graphs: int | None = None,
    num_nodes: int | None = None,
    num_edges: int | None = None,
) -> Iterator[Any]:
    """Batches of fixed size from the graphs that a sampler puts together, with one more graph, node and edge."""
    source = getattr(batch_sampler, "data_source", None) if data_source is None else data_source
    if source is None:
        raise ValueError("The data source is neither given nor an attribute of the batch sampler.")
    given = {"num_graphs": num_graphs, "num_nodes": num_nodes, "num_edges": num_edges}
    sizes: dict[str, int] = {}
    for name, value in given.items():
        of_sampler = getattr(batch_sampler, name, None)
        if value is None and of_sampler is None:
            raise ValueError(f"The parameter `{name}` is neither given nor an attribute of the batch sampler.")
        if value is not None and of_sampler is not None and value <= of_sampler:
            raise ValueError(
                f"The parameter `{name}` (= {value}) should be greater than that of the batch sampler, {of_sampler}: "
                "padding needs room."
            )
        sizes[name] = int(of_sampler or 0) + 1 if value is None else value
    collater = FixedSizeCollater(FixedSizeOptions(sizes["num_nodes"], sizes["num_edges"], sizes["num_graphs"]))
    for indices in batch_sampler:
        yield collater([source[index] for index in indices])
