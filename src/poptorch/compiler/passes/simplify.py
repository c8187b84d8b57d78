"""Drop operations that do nothing in a functional graph: detach, double transposes, copies onto equal layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import fx

from poptorch.compiler.passes.summary import summary
from poptorch.program.graphs import remove_dead_code
from poptorch.program.program import Program

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

aten = torch.ops.aten


def simplify(program: Program, context: Context) -> str:
    """Replace each superfluous operation by its operand, until nothing changes."""
    removed = 0
    changed = True
    while changed:
        changed = False
        for node in list(program.operations()):
            rule = _RULES.get(node.target)
            replacement = rule(node) if rule is not None else None
            if replacement is not None and replacement is not node:
                node.replace_all_uses_with(replacement)
                program.graph.erase_node(node)
                removed += 1
                changed = True
        removed += remove_dead_code(program)
    return summary(removed, f"removed {removed} operations")


def _operand(node: fx.Node) -> fx.Node | None:
    first = node.args[0]
    return first if isinstance(first, fx.Node) else None


def _same_layout(node: fx.Node, other: fx.Node | None) -> bool:
    if other is None:
        return False
    a, b = node.meta.get("val"), other.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    marked = a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg()  # a copy computes what a view only promised
    return not marked and a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()


def _always(node: fx.Node) -> fx.Node | None:
    return _operand(node)


def _if_same_layout(node: fx.Node) -> fx.Node | None:
    operand = _operand(node)
    return operand if _same_layout(node, operand) else None


def _undo_transpose(node: fx.Node) -> fx.Node | None:
    operand = _operand(node)
    if operand is not None and operand.target is aten.t.default:
        return _operand(operand)
    return None


def _copied(node: fx.Node) -> fx.Node | None:
    """``copy(a, b)`` is ``b`` in the type and shape of ``a``."""
    source = node.args[1]
    return source if isinstance(source, fx.Node) and _same_layout(node, source) else None


def _slice_of_scatter(node: fx.Node) -> fx.Node | None:
    """Reading back the slice that was just written."""
    scatter = _operand(node)
    if scatter is None or scatter.target is not aten.slice_scatter.default:
        return None
    written = scatter.args[1]
    same = node.args[1:] == scatter.args[2:] and not node.kwargs and not scatter.kwargs
    return written if same and isinstance(written, fx.Node) else None


def _scatter_twice(node: fx.Node) -> fx.Node | None:
    """Writing the same values to the same slice a second time."""
    first = _operand(node)
    if first is None or first.target is not aten.slice_scatter.default:
        return None
    return first if node.args[1:] == first.args[1:] and not node.kwargs and not first.kwargs else None


_RULES: dict[object, Callable[[fx.Node], fx.Node | None]] = {
    aten.detach.default: _always,
    aten.alias.default: _always,
    aten.lift_fresh.default: _always,
    aten.lift_fresh_copy.default: _if_same_layout,
    aten.clone.default: _if_same_layout,
    aten._to_copy.default: _if_same_layout,
    aten.contiguous.default: _if_same_layout,
    aten.view.default: _if_same_layout,
    aten._unsafe_view.default: _if_same_layout,
    aten.reshape.default: _if_same_layout,
    aten.expand.default: _if_same_layout,
    aten.slice.Tensor: lambda node: _if_same_layout(node) or _slice_of_scatter(node),
    aten.t.default: _undo_transpose,
    aten.copy.default: _copied,
    aten.slice_scatter.default: _scatter_twice,
}
