"""Precision: the type of partial sums, and the watch over float16 gradients for automatic loss scaling."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from poptorch.ambient import Placement
from poptorch.errors import backend_error
from poptorch.ops.traits import Kind, traits_of
from poptorch.program.graphs import descendants, insert_call, is_view
from poptorch.program.opinfo import Sweep, info_of, set_info
from poptorch.program.program import Program, Role, value_of

aten: Any = torch.ops.aten

LARGE_GRADIENTS = "large gradients"
"""Anchors with this prefix are the engine's own: how many elements of a stage's gradients are large."""


def record_partials(program: Program, backend_options: Mapping[str, Any]) -> str:
    """Note the type of partial sums on every matrix product and convolution, for the IPU Model.

    The host always sums in float32.
    """
    products = backend_options.get("partialsTypeMatMuls")
    convolutions = dict(backend_options.get("convolutionOptions", {})).get("partialsType")
    count = 0
    for node in program.operations():
        traits = traits_of(node)
        chosen = convolutions if traits.kind is Kind.CONVOLUTION else products
        if traits.is_product and chosen is not None:
            set_info(node, info_of(node).but(partials=str(chosen)))
            count += 1
    return f"{count} operations with chosen partials"


@dataclass
class GradientWatch:
    """What the program was extended by."""

    outputs: int = 0
    """How many counts the program returns, behind all anchors."""

    elements: int = 0
    """How many gradient elements one micro-batch looks at."""


def watch_gradients(program: Program, edge: float) -> GradientWatch:
    """Count, stage by stage, the elements of float16 gradients with a magnitude of ``edge`` or more (or NaN)."""
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
    values = program.output_values() + list(totals.values())
    program.anchors += [f"{LARGE_GRADIENTS} {i}" for i in range(len(totals))]
    program.output_node.args = (tuple(values),)
    return GradientWatch(len(totals), sum(value_of(n).numel() for n in tracked))


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
