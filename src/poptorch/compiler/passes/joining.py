"""Gradients of the parts of a value, put together instead of added up.

A value that is taken apart by indices or slices has a sum as its gradient: for each part as many zeros as the whole
has elements, and the part's gradient among them. Parts that cover the whole without overlap are simply laid side by
side. This is how ``torch.nn.MultiheadAttention`` gets its queries, keys and values from one product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from poptorch.compiler.passes.summary import summary
from poptorch.program.graphs import insert_call, remove_dead_code
from poptorch.program.opinfo import info_of
from poptorch.program.program import Program

if TYPE_CHECKING:
    from poptorch.compiler.passes.context import Context

aten = torch.ops.aten


def join_parts(program: Program, context: Context) -> str:
    """Replace sums of parts that cover a value by ``stack`` or ``cat``."""
    joined = 0
    for node in reversed(list(program.operations())):  # the last addition of a sum first
        if not node.users:  # a part of a sum that is gone
            continue
        parts = _parts(node)
        found = _stack(parts) or _cat(parts)
        if found is None:
            continue
        target, dim, ordered = found
        whole = insert_call(program, node, target, ([part.args[0] for part in ordered], dim), like=node)
        node.replace_all_uses_with(whole)
        program.graph.erase_node(node)
        joined += 1
    removed = remove_dead_code(program)
    return summary(joined + removed, f"joined {joined} sums of parts")


_MAKERS = (aten.select_backward.default, aten.slice_backward.default)


def _parts(node: fx.Node) -> list[fx.Node]:
    """The terms of a sum if all are of one kind and shape, in one place, and needed nowhere else; or nothing."""
    if not _is_sum(node):
        return []
    terms: list[fx.Node] = []
    queue: list[Any] = list(node.args)
    while queue:
        term = queue.pop()
        if not isinstance(term, fx.Node) or len(term.users) != 1:
            return []
        if _is_sum(term):
            queue += term.args
        elif term.target in _MAKERS and not term.kwargs:
            terms.append(term)
        else:
            return []
    first = terms[0]
    alike = all(
        t.target is first.target and t.args[1:3] == first.args[1:3] and info_of(t).placement == info_of(node).placement
        for t in terms
    )
    return terms if alike else []


def _is_sum(node: fx.Node) -> bool:
    return node.target is aten.add.Tensor and not node.kwargs


Joined = tuple[Callable[..., Any], int, list[fx.Node]]


def _stack(parts: Sequence[fx.Node]) -> Joined | None:
    """``select_backward(gradient, shape, dim, index)`` with every index once."""
    if not parts or parts[0].target is not aten.select_backward.default:
        return None
    shape, dim = _shape_and_dim(parts[0])
    by_index = {int(p.args[3]) % shape[dim]: p for p in parts}  # type: ignore[arg-type]
    if len(by_index) != len(parts) or len(parts) != shape[dim]:
        return None
    return aten.stack.default, dim, [by_index[i] for i in range(shape[dim])]


def _cat(parts: Sequence[fx.Node]) -> Joined | None:
    """``slice_backward(gradient, shape, dim, start, end, step)`` where each starts as the one before ends."""
    if not parts or parts[0].target is not aten.slice_backward.default:
        return None
    shape, dim = _shape_and_dim(parts[0])
    spans = {slice(*p.args[3:6]).indices(shape[dim]): p for p in parts}
    position, ordered = 0, []
    for (start, end, step), part in sorted(spans.items(), key=lambda item: item[0]):
        if start != position or step != 1:
            return None
        position = end
        ordered.append(part)
    return (aten.cat.default, dim, ordered) if position == shape[dim] and len(ordered) == len(parts) else None


def _shape_and_dim(part: fx.Node) -> tuple[list[int], int]:
    shape: list[int] = list(part.args[1])  # type: ignore[arg-type]
    return shape, int(part.args[2]) % len(shape)  # type: ignore[arg-type]
