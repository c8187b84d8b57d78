"""What one operation costs: its rule, or the fallback; computed once for equal operations."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import fx

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.rules import (
    collectives,
    elementwise,
    layers,
    lookups,
    moving,
    optimizers,
    pooling,
    products,
    programs,
    recurrent,
    reductions,
    solving,
)
from poptorch.ipu_model.rules.call import CostedCall, Rule, Table
from poptorch.ipu_model.rules.describe import describe
from poptorch.ipu_model.rules.fallback import fallback
from poptorch.ipu_model.rules.optimizers import PREFIX, each_tensor
from poptorch.ipu_model.settings import CostSettings
from poptorch.ipu_model.steps import OpCost
from poptorch.ops.traits import OpKind, traits_of

_FREE = {OpKind.VIEW, OpKind.HINT, OpKind.STRUCTURE}
"""Kinds of operations that name, look or tell: an IPU has nothing to do for them."""

_NOTHING = OpCost()


def cost_of(node: fx.Node, chip: Architecture, settings: CostSettings = CostSettings()) -> OpCost:
    """What a node of a program, or of its update, costs on one IPU.

    Reads shapes and types from ``node.meta["val"]`` of the node and its operands. What the node says about partial
    sums, available memory and cycles wins over the settings. An operation without a rule has the cost of
    :func:`poptorch.ipu_model.rules.fallback.fallback`, and says so (``covered``). An operation whose sizes
    depend on data is an error.
    """
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return _NOTHING
    if traits_of(node).kind in _FREE:
        return _NOTHING
    return cost(describe(node, chip, settings))


@lru_cache(maxsize=16384)
def cost(call: CostedCall) -> OpCost:
    """What an operation costs."""
    rule = rule_for(call.name)
    return rule(call) if rule is not None else fallback(call)


def rule_for(name: str) -> Rule | None:
    """The rule for operations with this bare name, if there is one."""
    if name not in RULES and name.startswith(PREFIX) and name.removeprefix(PREFIX) in RULES:
        return each_tensor(RULES[name.removeprefix(PREFIX)])
    return RULES.get(name)


RULES: Table = {
    name: rule
    for family in (
        elementwise,
        reductions,
        layers,
        products,
        lookups,
        moving,
        pooling,
        recurrent,
        solving,
        optimizers,
        collectives,
    )
    for name, rule in family.RULES.items()
} | programs.rules(cost_of)
"""All rules, by the bare names of operations."""

__all__ = ["RULES", "cost", "cost_of", "rule_for"]
