"""Which operands of an operation are indices, and of which range: for messages about an index that is out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class IndexRange:
    """An operand whose values must be from ``low`` to ``high``."""

    argument: str
    """Its name in the operation's schema; of a list, with its place in it."""

    low: int
    high: int
    also: int | None = None
    """A value outside of the range that is allowed as well."""

    def __str__(self) -> str:
        extra = f" (or {self.also}, which is ignored)" if self.also is not None else ""
        return f"from {self.low} to {self.high}{extra}"

    def violations(self, values: torch.Tensor) -> list[tuple[tuple[int, ...], int]]:
        """Positions and values of the elements that are not allowed.

        >>> IndexRange("index", 0, 2).violations(torch.tensor([1, 7, 0]))
        [((1,), 7)]
        """
        wrong = (values < self.low) | (values > self.high)
        if self.also is not None:
            wrong &= values != self.also
        return [(tuple(at), int(values[tuple(at)].item())) for at in wrong.nonzero().tolist()]


def bound_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of an operation by their names in its schema.

    >>> bound_arguments(torch.ops.aten.gather.default, ("x", 1, "i"), {})
    {'self': 'x', 'dim': 1, 'index': 'i'}
    """
    schema = getattr(target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    return {**dict(zip(names, args, strict=False)), **kwargs}


def index_ranges(name: str, arguments: Mapping[str, Any]) -> dict[str, IndexRange]:
    """The ranges of all operands that are indices, by argument; values are tensors.

    ``name`` is the operation's without its overload.

    >>> ranges = index_ranges("embedding", {"weight": torch.zeros(5, 2), "indices": torch.tensor([9])})
    >>> str(ranges["indices"])
    'from 0 to 4'
    """
    if name in ("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"):
        return {"indices": IndexRange("indices", 0, arguments["weight"].shape[0] - 1)}
    if name == "embedding_dense_backward":
        return {"indices": IndexRange("indices", 0, arguments["num_weights"] - 1)}
    if name.startswith(("nll_loss", "multi_margin_loss")):
        return _target_range(name, arguments)
    if name in ("index", "_unsafe_index", "index_put", "_unsafe_index_put", "index_put_"):
        return _advanced_ranges(arguments)
    if name.startswith("take") and "index" in arguments and "dim" not in arguments:
        count = arguments["self"].numel()
        return {"index": IndexRange("index", -count, count - 1)}
    if {"self", "dim", "index"} <= arguments.keys() and isinstance(arguments["dim"], int):
        source = arguments["self"]
        size = source.shape[arguments["dim"]] if source.ndim else 1
        return {"index": IndexRange("index", 0, size - 1)}
    return {}


def _target_range(name: str, arguments: Mapping[str, Any]) -> dict[str, IndexRange]:
    scores = arguments["self"]
    classes = scores.shape[1 if scores.ndim > 1 else 0]
    ignored = arguments.get("ignore_index", -100) if name.startswith("nll_loss") else None
    inside = ignored is not None and 0 <= ignored < classes
    return {"target": IndexRange("target", 0, classes - 1, None if inside else ignored)}


def _advanced_ranges(arguments: Mapping[str, Any]) -> dict[str, IndexRange]:
    result = {}
    for dim, index in enumerate(arguments["indices"]):
        if isinstance(index, torch.Tensor) and index.dtype not in (torch.bool, torch.uint8):
            size = arguments["self"].shape[dim]
            result[f"indices[{dim}]"] = IndexRange(f"indices[{dim}]", -size, size - 1)
    return result
