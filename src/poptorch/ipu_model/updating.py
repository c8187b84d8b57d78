"""The cost of a weight update on each IPU, tensor by tensor: an IPU updates the weights that it holds."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx

from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.memory import Category, Home
from poptorch.ipu_model.book import CostBook, OpRecord
from poptorch.program.opinfo import info_of, set_info
from poptorch.program.update import UpdateProgram


@dataclass(frozen=True)
class UpdateCosts:
    """What each IPU does once per weight update."""

    by_ipu: Mapping[int, tuple[OpRecord, ...]] = field(default_factory=dict)

    def on(self, ipu: int) -> tuple[OpRecord, ...]:
        """The operations on one IPU."""
        return self.by_ipu.get(ipu, ())


def update_costs(device: DeviceProgram, book: CostBook) -> UpdateCosts:
    """The operations of the update, each on the IPU that holds the weight; sharded state is updated in shards."""
    if device.update is None:
        return UpdateCosts()
    homes = {home.name: home for home in device.memory.of(Category.WEIGHT)}
    shards = _shards(device)
    found: dict[int, list[OpRecord]] = {}
    for parameter, node in _Scattered(device.update, shards).nodes():
        parts = homes[parameter].parts
        for ipu in {device.plan.parts[part].ipu for part in parts}:
            found.setdefault(ipu, []).append(book.record(node))
    return UpdateCosts({ipu: tuple(records) for ipu, records in found.items()})


def _shards(device: DeviceProgram) -> dict[str, int]:
    """Over how many replicas the update of a parameter is split."""
    assert device.update is not None
    kept: dict[str, Home] = {home.name: home for home in device.memory.of(Category.OPTIMIZER)}
    return {state.parameter: kept[state.name].shards for state in device.update.state if kept[state.name].shards > 1}


class _Scattered:
    """The update's operations with a list of tensors each, as operations on one tensor each."""

    def __init__(self, update: UpdateProgram, shards: Mapping[str, int]) -> None:
        self._update = update
        self._shards = shards
        self._owners: dict[fx.Node, str] = {}
        placeholders = [n for n in update.graph_module.graph.nodes if n.op == "placeholder"]
        owners = [*update.names, *update.names, *update.owners]
        self._owners.update(zip(placeholders, owners, strict=False))
        self._graph = fx.Graph()
        self._operands: dict[tuple[fx.Node, str | None], fx.Node] = {}

    def nodes(self) -> Iterator[tuple[str, fx.Node]]:
        """Each operation with the parameter that it belongs to."""
        for node in self._update.graph_module.graph.nodes:
            if node.op != "call_function":
                continue
            if node.target is operator.getitem:
                self._own_item(node)
                continue
            lists = [a for a in (*node.args, *node.kwargs.values()) if _is_node_list(a)]
            if lists:
                yield from self._of_lists(node, lists)
            else:
                owner = next((self._owners[o] for o in node.all_input_nodes if o in self._owners), None)
                if owner is not None:
                    self._owners[node] = owner
                    yield owner, self._alone(node, owner, None)

    def _own_item(self, node: fx.Node) -> None:
        source, index = cast(tuple[fx.Node, int], node.args)
        lists: list[Any] = [a for a in (*source.args, *source.kwargs.values()) if _is_node_list(a)]
        if lists and index < len(lists[0]) and lists[0][index] in self._owners:
            self._owners[node] = self._owners[lists[0][index]]
        elif source in self._owners:
            self._owners[node] = self._owners[source]

    def _of_lists(self, node: fx.Node, lists: list[Any]) -> Iterator[tuple[str, fx.Node]]:
        for index in range(len(lists[0])):
            owner = next((self._owners[a[index]] for a in lists if index < len(a) and a[index] in self._owners), None)
            if owner is not None:
                yield owner, self._alone(node, owner, index)

    def _alone(self, node: fx.Node, owner: str, index: int | None) -> fx.Node:
        """The operation for one tensor of its lists, on a replica's shard of it."""

        def operand(argument: Any) -> Any:
            if isinstance(argument, fx.Node):
                return self._operand(argument, owner)
            if _is_node_list(argument) and index is not None:
                return [operand(argument[min(index, len(argument) - 1)])]
            if isinstance(argument, (list, tuple)):
                chosen = argument if index is None or len(argument) <= index else [argument[index]]
                return [operand(a) for a in chosen]
            return argument

        args = tuple(operand(a) for a in node.args)
        made = self._graph.call_function(node.target, args, {k: operand(v) for k, v in node.kwargs.items()})  # type: ignore[arg-type]
        value = node.meta.get("val")
        if index is not None and isinstance(value, (list, tuple)) and index < len(value):
            made.meta["val"] = [self._shard(value[index], owner)]
        elif isinstance(value, torch.Tensor):
            made.meta["val"] = self._shard(value, owner)
        else:
            made.meta["val"] = None
        set_info(made, info_of(node))
        return made

    def _operand(self, node: fx.Node, owner: str) -> fx.Node:
        key = node, owner
        if key not in self._operands:
            made = self._operands[key] = self._graph.placeholder(node.name)
            value = node.meta.get("val")
            made.meta["val"] = self._shard(value, owner) if isinstance(value, torch.Tensor) else None
        return self._operands[key]

    def _shard(self, value: Any, owner: str) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shards = self._shards.get(owner, 1)
        if shards == 1 or value.numel() < shards:
            return value
        return torch.empty(math.ceil(value.numel() / shards), dtype=value.dtype, device="meta")


def _is_node_list(argument: Any) -> bool:
    return isinstance(argument, (list, tuple)) and bool(argument) and isinstance(argument[0], fx.Node)


__all__ = ["UpdateCosts", "update_costs"]
