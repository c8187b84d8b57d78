"""The last batch of an epoch, filled up with padding."""

from __future__ import annotations

from typing import Any

from poptorch_geometric.collate import CombinedBatchingCollater, FixedSizeCollater, combined, data_slice_gen


class FillingCollater:
    """Joins as many micro-batches as a call consumes, also if the graphs are too few: the rest is padding."""

    fills_up = True
    """No batch is smaller than the others."""

    def __init__(self, collater: Any, micro_batches: int) -> None:
        self.collater = collater
        self._micro_batches = micro_batches

    def __call__(self, graphs: list[Any]) -> Any:
        """The batch of these graphs."""
        joined = self.collater
        if not isinstance(joined, CombinedBatchingCollater) or joined.mini_batch_size is None:
            return joined(graphs)
        if len(graphs) == joined.mini_batch_size * self._micro_batches:
            return joined(graphs)
        batches = [joined.collater(list(part)) for part in data_slice_gen(graphs, joined.mini_batch_size)]
        missing = self._micro_batches - len(batches)
        if missing:
            single = _fixed_size_collater(joined.collater)
            batches += [single.only_padding(graphs[0])] * missing
        return combined(batches, joined.parser)


def _fixed_size_collater(collater: Any) -> FixedSizeCollater:
    while not isinstance(collater, FixedSizeCollater):
        inner = getattr(collater, "collater", None)
        if inner is None:
            raise TypeError(
                f"A {type(collater).__name__} cannot make a micro-batch of padding alone, which the last batch needs. "
                "Keep its FixedSizeCollater in an attribute `collater`, or set drop_last=True."
            )
        collater = inner
    return collater
