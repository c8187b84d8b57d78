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
from poptorch.ops.traits import Kind, traits_of
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
        is_convolution = traits.kind is Kind.CONVOLUTION
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
    totals: dict[Placement, fx.Node] = {}
    for node in tracked:
        placement = info_of(node).placement
        count = _count_large(program, node, edge)
        if placement in totals:
            count = insert_call(program, count.next, aten.add.Tensor, (totals[placement], count), node)
        totals[placement] = count
    counts = [(Output(OutputKind.COUNT, f"large gradients {i}"), total) for i, total in enumerate(totals.values())]
    program.set_outputs([*program.returned(), *counts])
    context.watch = GradientWatch(sum(value_of(n).numel() for n in tracked))
    return f"watching {context.watch.elements} gradient elements"


def _tracked(program: Program) -> list[fx.Node]:
    """float16 gradients of weights and activations: whatever the backward pass computes from the loss scale."""
    scale = [node for node, port in program.placeholders() if port.role is Role.LOSS_SCALE]
    reached = descendants(scale)
    return [n for n in program.operations() if n in reached and n.users and _is_gradient(n)]


def _is_gradient(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float16 or value.ndim == 0:
        return False
    producer = node.args[0] if node.target is operator.getitem else node
    assert isinstance(producer, fx.Node)
    return info_of(producer).sweep is Sweep.BACKWARD and not is_view(node)


def _count_large(program: Program, node: fx.Node, edge: float) -> fx.Node:
    like = node if node.target is not operator.getitem else node.args[0]
    assert isinstance(like, fx.Node)
    before = node.next
    while before.target is operator.getitem:
        before = before.next
    magnitude = insert_call(program, before, aten.abs.default, (node,), like)
    # "Not below the edge" instead of "at least the edge": NaN counts as large.
    small = insert_call(program, before, aten.lt.Scalar, (magnitude, edge), like)
    large = insert_call(program, before, aten.logical_not.default, (small,), like)
    return insert_call(program, before, aten.sum.default, (large,), like, dtype=torch.int32)
