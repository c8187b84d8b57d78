"""Plain tensors that ``forward`` changes: they are no state of the model.

A change takes effect once, when the model is captured, on the host's tensor. The program has the value from before as a
constant, so every call computes the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from poptorch.capture.evaluation import computed
from poptorch.capture.state import Rebinding
from poptorch.frames import warn_user
from poptorch.ops.traits import traits_of
from poptorch.program.graphs import is_view
from poptorch.program.opinfo import SourceLocation, info_of
from poptorch.program.program import has_values


class HostEffects:
    """What a recording did to plain tensors, and how to do it to the user's own."""

    def __init__(
        self, graph_module: fx.GraphModule, arguments: Sequence[torch.Tensor], originals: Iterable[tuple[Any, Any]]
    ) -> None:
        """``arguments`` are the values of the placeholders, ``originals`` pairs of a user's tensor and its copy."""
        self._graph_module = graph_module
        self._nodes = list(graph_module.graph.nodes)
        placeholders = [n for n in self._nodes if n.op == "placeholder"]
        self._arguments = dict(zip(placeholders, arguments, strict=True))
        self._originals = {id(copy): original for original, copy in originals}
        self._constants = {
            str(n.target): getattr(graph_module, str(n.target)) for n in self._nodes if n.op == "get_attr"
        }
        self._writes = self._find_writes()

    def _find_writes(self) -> dict[str, list[fx.Node]]:
        """The operations that write to user tensors, by the name of the constant."""
        found: dict[str, list[fx.Node]] = {}
        for node in self._nodes:
            if node.op != "call_function" or not traits_of(node).is_in_place:
                continue
            root = _written(node)
            if root.op == "get_attr" and id(self._constants[str(root.target)]) in self._originals:
                found.setdefault(str(root.target), []).append(node)
        return found

    def apply(self, rebound: Sequence[tuple[Rebinding, fx.Node]], names: Mapping[int, str]) -> None:
        """Change the user's tensors, and say so; ``names`` are those of plain attributes by the tensor's identity."""
        rebound = [(rebinding, node) for rebinding, node in rebound if self._follows(node, rebinding.old)]
        if not self._writes and not rebound:
            return
        wanted = [*(nodes[-1] for nodes in self._writes.values()), *(node for _, node in rebound)]
        needed = self._needed(wanted)
        possible = all(has_values(self._arguments[n]) for n in needed if n.op == "placeholder")
        values, constants = self._evaluated(needed) if possible else ({}, {})
        for target, nodes in self._writes.items():
            original = self._originals[id(self._constants[target])]
            _announce(names.get(id(original)), info_of(nodes[0]).source)
            if possible:
                with torch.no_grad():
                    original.copy_(constants[target])
        for rebinding, node in rebound:
            _announce(rebinding.attribute, info_of(node).source)
            if possible:
                rebinding.holder.__dict__[rebinding.attribute] = values[node]

    def _follows(self, node: fx.Node, old: torch.Tensor) -> bool:
        """Whether a new value is computed from the old one. What is not, such as a cache, is left alone."""
        constants = (self._constants[str(n.target)] for n in _ancestors([node]) if n.op == "get_attr")
        return any(self._originals.get(id(constant)) is old for constant in constants)

    def _needed(self, wanted: Sequence[fx.Node]) -> set[fx.Node]:
        """What to run for these values: all that they are computed from, and writes to that in between."""
        end = max(self._nodes.index(node) for node in wanted)
        writes = [n for n in self._nodes[: end + 1] if n.op == "call_function" and traits_of(n).is_in_place]
        return _ancestors([*writes, *wanted])

    def _evaluated(self, needed: set[fx.Node]) -> tuple[dict[fx.Node, Any], dict[str, Any]]:
        """The values of the nodes, and of the constants after all writes; nothing of the recording changes."""
        constants = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in self._constants.items()}
        values: dict[fx.Node, Any] = {}
        with torch.no_grad():
            for node in self._nodes:
                if node not in needed:
                    continue
                if node.op == "placeholder":
                    values[node] = self._arguments[node].detach().clone()
                elif node.op == "get_attr":
                    values[node] = constants[str(node.target)]
                else:
                    values[node] = computed(node, values)
        return values, constants


def _ancestors(starts: Iterable[fx.Node]) -> set[fx.Node]:
    """All that these nodes are computed from, themselves included."""
    found: set[fx.Node] = set()
    queue = list(starts)
    while queue:
        node = queue.pop()
        if node not in found:
            found.add(node)
            queue += node.all_input_nodes
    return found


def _written(node: fx.Node) -> fx.Node:
    """The node whose memory an in-place operation writes to."""
    current = node
    while current.op == "call_function" and (is_view(current) or traits_of(current).is_in_place):
        operand = current.args[0]
        if not isinstance(operand, fx.Node):
            break
        current = operand
    return current


def _announce(name: str | None, where: SourceLocation | None) -> None:
    what = "A tensor" if name is None else f"The tensor {name!r}, a plain attribute,"
    message = (
        f"{what} is changed in forward() at {where}. It is not part of the model's state: the change takes effect "
        "once, while the model is compiled, and all calls return the same. To keep a value from call to call, "
        "register it as a buffer with register_buffer(); where a function is captured, name its module with model=."
    )
    warn_user(message)
