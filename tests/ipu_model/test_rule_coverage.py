"""Nearly every operation of real programs has a rule of its own."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import pytest
import torch
from lowered_programs import lowered, operations, traced
from test_matches_eager import TABLES
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree
from zoo_architecture import Architecture

import poptorch
from poptorch.ipu_model.architecture import architecture as chip_named
from poptorch.ipu_model.costing import RULES, cost_of
from poptorch.ipu_model.rules import (
    elementwise,
    layers,
    lookups,
    moving,
    optimizers,
    pooling,
    products,
    recurrent,
    reductions,
    solving,
)
from poptorch.ops.traits import OpKind, traits_of

CHIP = chip_named("bow")
FAMILIES = (elementwise, layers, lookups, moving, optimizers, pooling, products, recurrent, reductions, solving)
FREE = {OpKind.VIEW, OpKind.HINT, OpKind.STRUCTURE}
NOT_RUN = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "unsafe_split"}
"""Operations that are names for memory: with the views, the only ones that may take no time."""

NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


def sizes(node: fx.Node) -> list[Any]:
    """Sizes and numbers of an operation's operands and results."""
    values = pytree.tree_leaves([n.meta.get("val") for n in (node, *node.all_input_nodes)])
    return [size for v in values for size in (v.shape if isinstance(v, torch.Tensor) else [v])]


def test_no_operation_has_two_rules() -> None:
    for one, other in combinations(FAMILIES, 2):
        assert not set(one.RULES) & set(other.RULES), (one.__name__, other.__name__)
    assert len(RULES) > 600


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_the_zoo_has_rules(architecture: Architecture, training: bool) -> None:
    inputs, targets = architecture.batch()
    if training:
        model = architecture.trainable()
        device = lowered(model, *inputs, *targets, optimizer=torch.optim.Adam(model.parameters()))
    else:
        device = lowered(architecture.network().eval(), *inputs)
    found = [(node, cost_of(node, CHIP)) for node in operations(device)]
    without = Counter(str(node.target) for node, cost in found if not cost.covered)
    assert without.total() <= 0.01 * len(found), f"no rule for {dict(without)}"
    for node, cost in found:
        free = traits_of(node).kind in FREE or traits_of(node).name in NOT_RUN
        assert free == (cost.cycles(CHIP) == 0), node.target


@pytest.mark.parametrize("table", TABLES)
def test_the_tables_of_operations_have_rules(table: str) -> None:
    total, without = 0, Counter[str]()
    for row in TABLES[table]:
        floating = any(t.is_floating_point() for t in row.inputs)
        try:
            nodes = traced(row.make(), *row.inputs, grad=row.grad and floating)
        except NEEDS_VALUES:
            continue
        for node in nodes:
            try:
                cost = cost_of(node, CHIP)
            except poptorch.Error:  # sizes that depend on data
                assert any(isinstance(size, torch.SymInt) for size in sizes(node)), node
                continue
            total += 1
            without[str(node.target)] += not cost.covered
    assert total > len(TABLES[table]) / 2
    assert without.total() <= 0.01 * total, f"no rule for {[name for name, count in without.items() if count]}"
