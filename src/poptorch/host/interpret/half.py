"""float16 on a CPU: which operations compute in float32, and how operands get there and results come back.

CPUs multiply float16 matrices 20 to 70 times slower than float32 ones, and some operations have no float16 kernel at
all. The Program keeps saying float16; here such an operation is given float32 copies of its operands, and its results
are rounded to the types that the Program promises. Partial sums are then float32, as on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from poptorch.ops.traits import HalfSupport, traits_of
from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import Sweep, info_of

HALF = torch.float16


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The described tensors in a node's argument or value."""
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def is_half(value: Any) -> bool:
    """Whether there is a float16 tensor in a node's argument or value."""
    return any(tensor.dtype is HALF for tensor in tensors_in(value))


def touches_half(node: fx.Node) -> bool:
    """Whether an operand or a result is float16."""
    return is_half(node) or any(is_half(operand) for operand in node.all_input_nodes)


class HalfPlan:
    """Which nodes of a graph compute in float32, and how long the copies of their operands are needed."""

    def __init__(self, graph: fx.Graph, numerics: Numerics, parameters: Mapping[fx.Node, int] | None = None) -> None:
        self._numerics = numerics
        self.parameters = dict(parameters or {})
        self._any = any(is_half(node) for node in graph.nodes)
        self._taken = {n for n in graph.nodes if self._decide(n)} if self._any else set()
        # Checks look at the operands that the Program names.
        self._spared = set() if numerics.exceptions or not self._any else self._views_of_copies_only(graph)
        self._last_use: dict[tuple[fx.Node, Sweep], fx.Node] = {}
        for node in graph.nodes:
            if node in self._taken:
                for operand in node.all_input_nodes:
                    if is_half(operand):
                        self._last_use[self.root(operand), info_of(node).sweep] = node

    def _decide(self, node: fx.Node) -> bool:
        traits = traits_of(node)
        if not traits.is_aten or traits.is_in_place or not touches_half(node):
            return False
        if traits.half is HalfSupport.WIDE:
            return True
        return self._numerics.stochastic_rounding and is_half(node) and is_arithmetic(node)

    def _views_of_copies_only(self, graph: fx.Graph) -> set[fx.Node]:
        spared: set[fx.Node] = set()
        for node in reversed(graph.nodes):
            if self.root(node) is not node and all(u in self._taken or u in spared for u in node.users):
                spared.add(node)
        return spared

    def spares(self, node: fx.Node) -> bool:
        """Whether the node's float16 value is not needed: all users take a view of the float32 copy instead."""
        return node in self._spared

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """The values that the generated code reads for this node."""
        if node in self._spared:
            return []
        operands = node.all_input_nodes
        if node not in self._taken:
            return operands
        roots = [self.root(o) if is_half(o) else o for o in operands]
        return [*roots, *operands] if self._numerics.exceptions else roots

    def takes(self, node: fx.Node) -> bool:
        """Whether the node computes in float32."""
        return node in self._taken

    def root(self, node: fx.Node) -> fx.Node:
        """The value whose float32 copy serves ``node``: itself, or what it is a mere view of."""
        while traits_of(node).keeps_elements and isinstance(node.args[0], fx.Node) and is_half(node.args[0]):
            node = node.args[0]
        return node

    def dead_after(self, node: fx.Node) -> list[fx.Node]:
        """Roots whose float32 copies are of no more use after ``node`` in its part of the step.

        Copies of activations do not wait for the backward pass: that would cost three times the memory that the
        float16 value takes, and a conversion is cheap.
        """
        if not self._any:
            return []
        sweep = info_of(node).sweep
        roots = dict.fromkeys(self.root(o) for o in node.all_input_nodes if is_half(o))
        if traits_of(node).is_in_place:
            return list(roots)  # the copies are not of the new values
        return [r for r in roots if self._last_use.get((r, sweep)) is node and r not in self.parameters]


def is_arithmetic(node: fx.Node) -> bool:
    """Whether the operation computes new numbers, instead of moving, choosing or making up values."""
    traits = traits_of(node)
    if not traits.is_aten or traits.is_view:
        return False
    return _narrows(node) if traits.name == "_to_copy" else not traits.moves_only


def _narrows(node: fx.Node) -> bool:
    source = next(tensors_in(node.args[0]), None)
    return is_half(node) and source is not None and source.dtype in (torch.float32, torch.float64)


def wide_constant(value: Any) -> Any:
    """An argument of an operation that computes in float32 instead: a requested float16 becomes float32."""
    return torch.float32 if value is HALF else value


def result_types(node: fx.Node) -> Any:
    """The element types that the Program promises for the node's results; ``None`` where there is no tensor."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        return tuple(v.dtype if isinstance(v, torch.Tensor) else None for v in value)
    return value.dtype if isinstance(value, torch.Tensor) else None


def rounding(node: fx.Node) -> Callable[[Any], Any]:
    """A function that gives the node's results their promised types."""
    types = result_types(node)
    if not isinstance(types, tuple):
        return lambda result: result.to(types)

    def each(results: Any) -> list[Any]:
        return [r if t is None or r is None else r.to(t) for r, t in zip(results, types, strict=True)]

    return each


class SafetyNet:
    """A float16 operation that is done in float32 from the moment its kernel turns out not to exist."""

    def __init__(self, node: fx.Node, function: Callable[..., Any]) -> None:
        self._function = function
        self._round = rounding(node)
        self._missing = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._missing:
            try:
                return self._function(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as error:
                if "Half" not in str(error):
                    raise
                self._missing = True
        return self._round(self._function(*_wide(args), **_wide(kwargs)))


def needs_safety_net(node: fx.Node) -> bool:
    """Whether the node is a float16 operation that might lack a kernel."""
    traits = traits_of(node)
    if not traits.is_aten or traits.half is HalfSupport.NATIVE or traits.is_in_place or traits.is_view:
        return False
    return touches_half(node)


def _wide(value: Any) -> Any:
    """The value with every float16 in it as float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype is HALF else value
    if isinstance(value, (list, tuple)):
        return type(value)(_wide(v) for v in value)
    if isinstance(value, dict):
        return {k: _wide(v) for k, v in value.items()}
    return wide_constant(value)
