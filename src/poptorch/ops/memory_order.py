"""Graphs that were recorded with tensors in one order in memory, made to mean the same in any other.

Views are recorded for the strides that tensors had then. On the device every weight and input lies in rows, so values
derived from them have other strides. What a view of all elements means does not depend on that; what ``as_strided``
means does, and is said anew by the order that was recorded.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from poptorch.errors import createPoptorchError

aten = torch.ops.aten

_SAME_ELEMENTS = {aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default}
"""The result has the elements in the order of the operand's dimensions, wherever they lie."""

_BY_ADDRESS = {aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default}
_OTHER_TYPE = {aten.view.dtype, aten.view_as_complex.default}
"""Views that need neighbours in the last dimension to be neighbours in memory."""


def order_in_memory(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions in the order of memory, the slowest first; ``None`` if there are gaps, or elements twice.

    >>> order_in_memory(torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last))
    [0, 2, 3, 1]
    """
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], tensor.shape[d] > 1, d))
    expected = 1
    for dimension in reversed(order):
        if tensor.shape[dimension] > 1 and strides[dimension] != expected:
            return None
        expected *= tensor.shape[dimension]
    return order if tensor.storage_offset() == 0 else None


def _recorded_order(node: fx.Node) -> tuple[fx.Node, list[int]]:
    """The value whose memory a view by address looks at, and the order in which it lay there."""
    base = _base(node.args[0])
    order = order_in_memory(base.meta["val"])
    if order is None:
        raise createPoptorchError(
            f"{node.target} looks at a tensor in the order of memory, which has gaps or holds elements twice there. "
            "The device keeps elements only. Use indexing, permute() or reshape(), or make the tensor contiguous() "
            "first."
        )
    return base, order


def _address_of(node: fx.Node, args: Any, kwargs: Any) -> dict[str, Any]:
    """Size, strides and place of a view, as seen from the beginning of the memory."""
    named = dict(zip(("size", "stride", "storage_offset"), args[1:], strict=False)) | dict(kwargs)
    if named.get("storage_offset") is None:
        named["storage_offset"] = node.args[0].meta["val"].storage_offset()  # type: ignore[union-attr]
    return named


def _is_as_it_lies(node: fx.Node) -> bool:
    """Whether a view by address is one of all elements of its operand, where they are: so it is with any strides."""
    operand = node.args[0].meta["val"]  # type: ignore[union-attr]
    named = _address_of(node, node.args, node.kwargs)
    where = (tuple(named["size"]), tuple(named["stride"]), named["storage_offset"])
    return where == (tuple(operand.shape), operand.stride(), operand.storage_offset())


class InAnyOrder(fx.Interpreter):
    """Runs a functional graph on tensors that lie in memory otherwise than those that it was recorded with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.extra_traceback = False  # users read what goes wrong, and know nothing of the graph

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The operation, in a form that asks nothing of the operand's strides."""
        if target in _SAME_ELEMENTS:
            return args[0].reshape(args[1])
        if target in _OTHER_TYPE:
            return super().call_function(target, (args[0].contiguous(), *args[1:]), kwargs)
        return super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        """As the interpreter; addresses are those of the recording."""
        return self._by_address(n) if n.target in _BY_ADDRESS else super().run_node(n)

    def _by_address(self, node: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if node.target is not aten.as_strided_scatter.default and _is_as_it_lies(node):
            return args[0].clone() if node.target is aten.as_strided_copy.default else aten.alias(args[0])
        base, order = _recorded_order(node)
        values = self.env[base]
        memory = values.permute(order).contiguous().reshape(-1)
        if node.target is aten.as_strided_scatter.default:
            source, size, stride, *offset = args[1:]
            written = memory.as_strided_scatter(source, size, stride, *offset, **kwargs)
            back = [order.index(d) for d in range(len(order))]
            return written.reshape([values.shape[d] for d in order]).permute(back)
        return torch.as_strided(memory, **_address_of(node, args, kwargs))


def for_any_order(graph: fx.Graph) -> None:
    """Let a functional graph mean what it means now, however the tensors lie in memory that it is run with."""
    for node in list(graph.nodes):
        if node.target in _SAME_ELEMENTS:
            node.target, node.args = aten.reshape.default, node.args[:2]
        elif node.target in _OTHER_TYPE:
            node.replace_input_with(node.args[0], _in_rows(graph, node, node.args[0]))
        elif node.target in (aten.as_strided.default, aten.as_strided_copy.default) and _is_as_it_lies(node):
            alias = node.target is aten.as_strided.default
            node.target, node.args, node.kwargs = (aten.alias if alias else aten.clone).default, node.args[:1], {}
        elif node.target in (aten.as_strided.default, aten.as_strided_copy.default):
            base, order = _recorded_order(node)
            named = _address_of(node, node.args, node.kwargs)
            with graph.inserting_before(node):
                ordered = graph.call_function(aten.permute.default, (base, order))
            node.args = (_in_rows(graph, node, ordered), named["size"], named["stride"], named["storage_offset"])
            node.kwargs = {}


def _in_rows(graph: fx.Graph, node: fx.Node, value: Any) -> fx.Node:
    """A copy for ``node`` that lies in memory in the order of its dimensions."""
    with graph.inserting_before(node):
        return graph.call_function(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})


def _base(value: Any) -> fx.Node:
    """The value whose memory a view looks at."""
    while isinstance(value.target, torch._ops.OpOverload) and _is_view(value.target):
        value = value.args[0]
    assert isinstance(value, fx.Node)
    return value


@functools.cache
def _is_view(target: torch._ops.OpOverload) -> bool:
    first = target._schema.arguments[0].alias_info if target._schema.arguments else None
    return first is not None and not first.is_write
