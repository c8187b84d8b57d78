"""Precision: the type of partial sums, and the watch over float16 gradients for automatic loss scaling."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from poptorch.ambient import Placement
from poptorch.compiler.passes.summary import UNCHANGED, summary
from poptorch.errors import backend_error
from poptorch.ops.traits import OpKind, traits_of
from poptorch.program.graphs import descendants, insert_call, is_view
from poptorch.program.opinfo import Sweep, info_of, set_info
from poptorch.program.outputs import Output, OutputKind
from poptorch.program.program import Program, Role, value_of

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

aten: Any = torch.ops.aten


def record_partials(program: Program, context: Context) -> str:
    """Note the type of partial sums on every matrix product and convolution, for the IPU Model.

    The host always sums in float32.
    """
    settings = context.settings
    count = 0
    for node in program.operations():
        traits = traits_of(node)
        is_convolution = traits.kind is OpKind.CONVOLUTION
        chosen = settings.convolution_partials if is_convolution else settings.product_partials
        if traits.is_product and chosen is not None:
            set_info(node, info_of(node).but(partials=chosen))
            count += 1
    return summary(count, f"{count} operations with chosen partials")


@dataclass(frozen=True)
class GradientWatch:
    """What automatic loss scaling looks at."""

    elements: int = 0
    """How many gradient elements there are in one micro-batch; none, if it is off."""


def watch_gradients(program: Program, context: Context) -> str:
    """Count, stage by stage, the elements of float16 gradients that automatic loss scaling takes for large (or NaN)."""
    edge = context.settings.loss_scaling_edge
    if edge is None:
        return UNCHANGED
    tracked = _tracked(program)
    if not tracked:
        raise backend_error(
            "No tracked gradient tensors of type fp16 were found. Automatic loss scaling watches float16 gradients: "
            "make (part of) the model half(), or switch setAutomaticLossScaling off."
        )
    placements = {_count_large(program, node, edge): info_of(_producer(node)).placement for node in tracked}
    totals: dict[Placement, fx.Node] = {}
    # In the order of the program: values of one operation are not counted in the order of their numbers.
    for count in [node for node in program.operations() if node in placements]:
        placement = placements[count]
        total = count
        if placement in totals:
            total = insert_call(program, count.next, aten.add.Tensor, (totals[placement], count), count)
        totals[placement] = total
    counts = [(Output(OutputKind.COUNT, f"large gradients {i}"), total) for i, total in enumerate(totals.values())]
    program.set_outputs([*program.returned(), *counts])
    context.watch = GradientWatch(sum(value_of(n).numel() for n in tracked))
    return f"watching {context.watch.elements} gradient elements"


def _tracked(program: Program) -> list[fx.Node]:
    """float16 gradients of weights and activations: whatever the backward pass computes from the loss scale."""
    scale = [node for node, port in program.placeholders() if port.role is Role.LOSS_SCALE]
    reached = descendants(scale)
    casts = {user for node in scale for user in node.users if len(user.all_input_nodes) == 1}  # still the scale itself
    return [n for n in program.operations() if n in reached and n not in casts and n.users and _is_gradient(n)]


def _is_gradient(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float16:
        return False
    return info_of(_producer(node)).sweep is Sweep.BACKWARD and not is_view(node)


def _producer(node: fx.Node) -> fx.Node:
    """The operation that computes a value; ``getitem`` only names one of several."""
    producer = node.args[0] if node.target is operator.getitem else node
    assert isinstance(producer, fx.Node)
    return producer


def _count_large(program: Program, node: fx.Node, edge: float) -> fx.Node:
    like = _producer(node)
    before = node.next
    while before.target is operator.getitem:
        before = before.next
    magnitude = insert_call(program, before, aten.abs.default, (node,), like)
    # "Not below the edge" instead of "at least the edge": NaN counts as large.
    small = insert_call(program, before, aten.lt.Scalar, (magnitude, edge), like)
    large = insert_call(program, before, aten.logical_not.default, (small,), like)
    return insert_call(program, before, aten.sum.default, (large,), like, dtype=torch.int32)
