"""The cost of every operation of a program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import fx

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.steps import OpCost
from poptorch.ipu_model.tiles import tensor_bytes
from poptorch.program.opinfo import OpInfo, Sweep, info_of, set_info

CostRule = Callable[[fx.Node], OpCost]


@dataclass(frozen=True)
class Cycles:
    """Time on one IPU by what it is spent on."""

    compute: float = 0.0
    exchange: float = 0.0
    sync: float = 0.0

    @property
    def total(self) -> float:
        return self.compute + self.exchange + self.sync

    def __add__(self, other: Cycles) -> Cycles:
        return Cycles(self.compute + other.compute, self.exchange + other.exchange, self.sync + other.sync)

    def times(self, factor: float) -> Cycles:
        """So many of these one after the other."""
        return Cycles(self.compute * factor, self.exchange * factor, self.sync * factor)


def cycles_of(cost: OpCost, chip: Architecture) -> Cycles:
    """The time of an operation; its total is ``cost.cycles(chip)``."""
    compute = exchange = 0.0
    for step in cost.steps:
        compute += step.repeat * step.cycles
        exchange += step.repeat * (0.0 if step.exchange is None else step.exchange.cycles(chip))
    return Cycles(compute, exchange, cost.cycles(chip) - compute - exchange)


@dataclass(frozen=True)
class OpRecord:
    """One operation with its cost: what reports are made of."""

    name: str
    """Of its value in the program."""

    operator: str
    cost: OpCost = field(repr=False)
    cycles: Cycles
    bytes: int
    """Of its operands and results."""

    kind: int
    """Operations of one kind are the same code."""

    info: OpInfo = field(repr=False)

    @property
    def scope(self) -> str:
        """The layer that it belongs to."""
        return self.info.scope

    @property
    def source(self) -> str:
        """File and line of the user's code, or nothing."""
        return "" if self.info.source is None else str(self.info.source)

    @property
    def sweep(self) -> Sweep:
        return self.info.sweep


class CostBook:
    """The costs of all operations of a model; rules give equal operations the same object."""

    def __init__(self, chip: Architecture, rule: CostRule) -> None:
        self.chip = chip
        self._rule = rule
        self._known: dict[int, tuple[OpCost, Cycles, int]] = {}
        """By the identity of the cost, which is kept alive here."""

        self.operations = 0
        self.uncovered: dict[str, int] = {}
        """How often an operator without a rule of its own occurs."""

    @property
    def kinds(self) -> int:
        """How many kinds of operations there are."""
        return len(self._known)

    def records(self, nodes: Iterable[fx.Node]) -> Iterator[OpRecord]:
        """Of all operations that compute something."""
        for node in nodes:
            if node.target is not operator.getitem:
                yield self.record(node)

    def record(self, node: fx.Node) -> OpRecord:
        """The cost of one operation."""
        cost = self._rule(node)
        if id(cost) not in self._known:
            self._known[id(cost)] = (cost, cycles_of(cost, self.chip), len(self._known))
        _, cycles, kind = self._known[id(cost)]
        self.operations += 1
        if not cost.covered:
            name = str(node.target)
            self.uncovered[name] = self.uncovered.get(name, 0) + 1
        moved = tensor_bytes(node.meta.get("val")) + sum(tensor_bytes(o.meta.get("val")) for o in node.all_input_nodes)
        return OpRecord(node.name, str(node.target), cost, cycles, moved, kind, info_of(node))


def call_of(target: Callable[..., object], *shapes: tuple[tuple[int, ...], torch.dtype]) -> fx.Node:
    """An operation that is in no program: ``target`` with operands of these shapes and types, in place."""
    graph = fx.Graph()
    operands = []
    for index, (shape, dtype) in enumerate(shapes):
        operand = graph.placeholder(f"operand_{index}")
        operand.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
        operands.append(operand)
    node = graph.call_function(target, tuple(operands))
    node.meta["val"] = operands[0].meta["val"]
    set_info(node, OpInfo(sweep=Sweep.UPDATE))
    return node


__all__ = ["CostBook", "CostRule", "Cycles", "OpRecord", "call_of", "cycles_of"]
