"""The arguments by which loaders of release 3.2 were told sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.strategies import OverSizeStrategy

_MARKS = ("num_nodes", "num_edges", "collater_args", "allow_skip_data")
_SIZES = ("num_edges", "num_graphs", "node_pad_value", "edge_pad_value", "graph_pad_value", "pad_graph_defaults")


@dataclass(frozen=True)
class FormerArguments:
    """What such arguments mean today."""

    options: FixedSizeOptions
    adds_masks: bool
    over_size: OverSizeStrategy
    sampler: Any = None

    @staticmethod
    def taken_from(kwargs: dict[str, Any], dataset: Any, batch_size: int) -> FormerArguments | None:
        """Those of ``FixedSizeDataLoader``, out of its keywords; ``None`` if there are none."""
        if not any(name in kwargs for name in _MARKS):
            return None
        collater_args = dict(kwargs.pop("collater_args", None) or {})
        num_nodes, num_edges = kwargs.pop("num_nodes", None), kwargs.pop("num_edges", None)
        skips, sampler = kwargs.pop("allow_skip_data", False), kwargs.pop("sampler", None)
        inferred = FixedSizeOptions.from_dataset(dataset, batch_size)
        collater_args.setdefault("num_edges", num_edges or inferred.num_edges)
        over_size = OverSizeStrategy.Skip if skips else trimming_of(collater_args)
        return FormerArguments(
            options_of(num_nodes or inferred.num_nodes, batch_size, collater_args),
            collater_args.get("add_masks_to_batch", False),
            over_size,
            sampler,
        )

    @staticmethod
    def padded(
        dataset: Any, num_nodes: int | None, batch_size: int | None, batch_sampler: Any, collater_args: Any
    ) -> FormerArguments:
        """Those of ``CustomFixedSizeDataLoader``."""
        collater_args = dict(collater_args or {})
        for name in ("num_nodes", "follow_batch", "exclude_keys"):
            assert name not in collater_args, f"`{name}` belongs to the loader: leave it out of collater_args."
        of_sampler = {name: getattr(batch_sampler, name, None) for name in ("num_graphs", "num_nodes", "num_edges")}
        number = batch_size or 2
        if of_sampler["num_graphs"] is not None:
            number = of_sampler["num_graphs"] + 1
        if of_sampler["num_nodes"] is not None:
            least = of_sampler["num_nodes"] + 1
            num_nodes = least if num_nodes is None else num_nodes
            assert num_nodes >= least, f"num_nodes is {num_nodes}, but the batch sampler needs {least}."
        if of_sampler["num_edges"] is not None:
            collater_args.setdefault("num_edges", of_sampler["num_edges"] + 1)
        if num_nodes is None:
            num_nodes = FixedSizeOptions.from_dataset(dataset, number).num_nodes  # type: ignore[assignment]
        options = options_of(num_nodes, number, collater_args)
        return FormerArguments(options, collater_args.get("add_masks_to_batch", False), trimming_of(collater_args))


def options_of(num_nodes: Any, num_graphs: int, collater_args: dict[str, Any]) -> FixedSizeOptions:
    """The options that arguments of a collater stand for."""
    sizes = {name: collater_args[name] for name in _SIZES if collater_args.get(name) is not None}
    return FixedSizeOptions(num_nodes, **{"num_graphs": num_graphs, **sizes})


def trimming_of(collater_args: dict[str, Any]) -> OverSizeStrategy:
    """What arguments of a collater say about graphs that are too large."""
    nodes, edges = collater_args.get("trim_nodes", False), collater_args.get("trim_edges", False)
    if nodes and edges:
        return OverSizeStrategy.TrimNodesAndEdges
    return OverSizeStrategy.TrimNodes if nodes else OverSizeStrategy.TrimEdges if edges else OverSizeStrategy.Error
