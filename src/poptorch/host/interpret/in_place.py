"""Operations that may write their result over an operand that is not read any more.

A graph is functional: ``relu`` makes a second tensor although the first one dies there. Writing over it saves the
memory, and the time of fetching fresh pages into the cache. Results are the same to the last bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from poptorch.ops.traits import traits_of
from poptorch.program.graphs import memory_root

aten = torch.ops.aten

Variant = Callable[..., Any]

# What to call instead, with the same arguments: the first one is written.
_OVER_FIRST: dict[Any, Variant] = {
    aten.relu.default: torch.relu_,
    aten.tanh.default: torch.tanh_,
    aten.sigmoid.default: torch.sigmoid_,
    aten.neg.default: torch.neg_,
    aten.exp.default: torch.exp_,
    aten.gelu.default: aten.gelu_.default._op,
    aten.silu.default: aten.silu_.default._op,
    aten.hardswish.default: aten.hardswish_.default._op,
    aten.leaky_relu.default: aten.leaky_relu_.default._op,
    aten.elu.default: aten.elu_.default._op,
    aten.hardtanh.default: aten.hardtanh_.default._op,
    aten.add.Tensor: torch.Tensor.add_,
    aten.add.Scalar: torch.Tensor.add_,
    aten.sub.Tensor: torch.Tensor.sub_,
    aten.sub.Scalar: torch.Tensor.sub_,
    aten.mul.Tensor: torch.Tensor.mul_,
    aten.mul.Scalar: torch.Tensor.mul_,
    aten.div.Tensor: torch.Tensor.div_,
    aten.div.Scalar: torch.Tensor.div_,
    aten.masked_fill.Scalar: torch.Tensor.masked_fill_,
    aten.clamp.default: torch.clamp_,
    aten.clamp_min.default: torch.clamp_min_,
}


def _into_first(overload: Any, name: str) -> Variant:
    """The overload that takes a tensor for its result, given the first operand."""
    call = overload._op

    def run(first: torch.Tensor, *rest: Any, **named: Any) -> Any:
        return call(first, *rest, **named, **{name: first})

    return run


# Each element of the gradient is read once, before the same element of the result is written.
_OVER_FIRST |= {
    aten.threshold_backward.default: _into_first(aten.threshold_backward.grad_input, "grad_input"),
    aten.gelu_backward.default: _into_first(aten.gelu_backward.grad_input, "grad_input"),
    aten.silu_backward.default: _into_first(aten.silu_backward.grad_input, "grad_input"),
    aten.tanh_backward.default: _into_first(aten.tanh_backward.grad_input, "grad_input"),
    aten.sigmoid_backward.default: _into_first(aten.sigmoid_backward.grad_input, "grad_input"),
    aten.leaky_relu_backward.default: _into_first(aten.leaky_relu_backward.grad_input, "grad_input"),
}

_SYMMETRIC = frozenset({aten.add.Tensor, aten.mul.Tensor})


class Reuse:
    """Which operations of a graph run in place, and on which operand."""

    def __init__(self, graph: fx.Graph) -> None:
        self._last: dict[fx.Node, fx.Node] = {}
        self._kept: set[fx.Node] = set()
        for node in graph.nodes:
            for operand in node.all_input_nodes:
                root = memory_root(operand)
                self._last[root] = node
                if not _only_reads(node):
                    self._kept.add(root)

    def variant(self, node: fx.Node) -> tuple[Variant, tuple[Any, ...]] | None:
        """What to call in place of the operation, and with which positional arguments."""
        call = _OVER_FIRST.get(node.target)
        if call is None:
            return None
        if self._may_write(node, node.args[0]):
            return call, node.args
        if node.target in _SYMMETRIC and node.kwargs.get("alpha", 1) == 1 and self._may_write(node, node.args[1]):
            return call, (node.args[1], node.args[0])
        return None

    def _may_write(self, node: fx.Node, operand: Any) -> bool:
        """Whether this is the last use of the operand's memory, which has one owner and room for the result."""
        if not isinstance(operand, fx.Node) or not _same_memory(operand.meta.get("val"), node.meta.get("val")):
            return False
        root = memory_root(operand)
        if root in self._kept or self._last.get(root) is not node or not _makes_memory(root):
            return False
        others = [n for n in node.all_input_nodes if n is not operand]
        return not any(memory_root(n) is root for n in others) and list(_tensors(node.args)).count(operand) == 1


def _tensors(args: tuple[Any, ...]) -> list[fx.Node]:
    return [a for a in args if isinstance(a, fx.Node)]


def _only_reads(node: fx.Node) -> bool:
    """Whether the node forgets its operands: host calls and foreign operations may keep them, outputs are kept."""
    if node.target is operator.getitem:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten"


def _makes_memory(root: fx.Node) -> bool:
    """Whether the result, each of several, lies in memory of its own: so do those of all element-wise operations."""
    if root.target is operator.getitem and isinstance(root.args[0], fx.Node):
        root = root.args[0]
    traits = traits_of(root)
    return not traits.is_in_place and (traits.is_fresh or traits.is_pointwise)


def _same_memory(operand: Any, result: Any) -> bool:
    """Whether the result can lie where the operand lies, element by element."""
    if not isinstance(operand, torch.Tensor) or not isinstance(result, torch.Tensor):
        return False
    same = operand.shape == result.shape and operand.dtype == result.dtype and operand.stride() == result.stride()
    return same and _is_dense(operand)


def _is_dense(value: torch.Tensor) -> bool:
    """Every element has a place of its own."""
    expected = 1
    for size, stride in sorted(zip(value.shape, value.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
