"""The ``interpret`` level: the graph as straight-line Python calls, values dropped at their last use."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from poptorch.compiler.codegen.bindings import Bindings
from poptorch.compiler.codegen.randomness import with_generator
from poptorch.compiler.opinfo import info_of
from poptorch.compiler.program import Program, Role

Runner = Callable[..., tuple[torch.Tensor, ...]]

_GROUPS = {
    Role.PARAMETER: "parameters",
    Role.BUFFER: "buffers",
    Role.CONSTANT: "constants",
    Role.INPUT: "inputs",
    Role.LOSS_SCALE: "loss_scale",
}


@dataclass(frozen=True)
class Generated:
    """A Python function made from a graph, with the source for people to read."""

    run: Runner
    source: str


def generate(program: Program) -> Generated:
    """``run(parameters, buffers, constants, inputs, loss_scale, random) -> outputs`` for one micro-batch."""
    writer = _Writer(program.graph_module)
    placeholders = program.placeholders()
    for role, group in _GROUPS.items():
        names = [writer.name(node) for node, port in placeholders if port.role is role]
        if names:
            writer.line(f"{', '.join(names)}, = {group}")
    writer.body(program.graph)
    return writer.finish("micro_batch", [*_GROUPS.values(), "random"])


def generate_flat(graph_module: fx.GraphModule, name: str) -> Generated:
    """A function that takes the graph's placeholders one by one."""
    writer = _Writer(graph_module)
    parameters = [writer.name(n) for n in graph_module.graph.nodes if n.op == "placeholder"]
    writer.body(graph_module.graph)
    return writer.finish(name, parameters)


class _Writer:
    """Writes the lines of one function and collects the globals that they use."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self._module = graph_module
        self._bindings = Bindings()
        self._globals: dict[str, Any] = {}
        self._callables: dict[int, str] = {}
        self._names: dict[fx.Node, str] = {}
        self._taken: set[str] = set(_GROUPS.values()) | {"random"}
        self._lines: list[str] = []

    def line(self, text: str) -> None:
        self._lines.append("    " + text)

    def name(self, node: fx.Node) -> str:
        """A Python name for the node's value."""
        if node not in self._names:
            base = re.sub(r"\W", "_", node.name)
            while base in self._taken or keyword.iskeyword(base):
                base += "_"
            self._taken.add(base)
            self._names[node] = base
        return self._names[node]

    def body(self, graph: fx.Graph) -> None:
        last_use = _last_uses(graph)
        for node in graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "get_attr":
                self._globals[self.name(node)] = _resolve(self._module, str(node.target))
                continue
            if node.op == "output":
                self.line(f"return {self._value(tuple(_flat(node.args[0])))}")
                continue
            self._operation(node)
            dead = [self._names[n] for n in last_use.get(node, ()) if n in self._names and n.op != "get_attr"]
            if not node.users:
                dead.append(self.name(node))
            if dead:
                self.line(f"del {', '.join(dict.fromkeys(dead))}")

    def _operation(self, node: fx.Node) -> None:
        random = info_of(node).random
        overload = isinstance(node.target, torch._ops.OpOverload)
        if random is not None and overload and torch.Tag.nondeterministic_seeded in node.target.tags:  # type: ignore[union-attr]
            function: Any = with_generator(node.target)
            extra = [f"generator=random({random})"]
        else:
            function, extra = self._bindings.find(node), []
        arguments = [self._value(a) for a in node.args]
        arguments += [f"{k}={self._value(v)}" for k, v in node.kwargs.items() if k != "generator"]
        self.line(f"{self.name(node)} = {self._callable(function, node)}({', '.join(arguments + extra)})")

    def _callable(self, function: Any, node: fx.Node) -> str:
        known = self._callables.get(id(function))
        if known is None:
            target = getattr(node.target, "__name__", None) or str(node.target)
            known = "op_" + re.sub(r"\W", "_", str(target)) + f"_{len(self._callables)}"
            self._callables[id(function)] = known
            self._globals[known] = function
        return known

    def _value(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return self.name(value)
        if isinstance(value, slice):
            return f"slice({self._value(value.start)}, {self._value(value.stop)}, {self._value(value.step)})"
        if isinstance(value, tuple):
            return "(" + "".join(self._value(v) + ", " for v in value) + ")"
        if isinstance(value, list):
            return "[" + ", ".join(self._value(v) for v in value) + "]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self._value(v)}" for k, v in value.items()) + "}"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
        name = f"literal_{len(self._globals)}"
        self._globals[name] = value
        return name

    def finish(self, name: str, parameters: Sequence[str]) -> Generated:
        source = "\n".join([f"def {name}({', '.join(parameters)}):", *self._lines]) + "\n"
        namespace = dict(self._globals)
        exec(compile(source, f"<poptorch {name}>", "exec"), namespace)  # our own text, never the user's
        return Generated(namespace[name], source)


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the values that are not needed after it."""
    seen: set[fx.Node] = set()
    result: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        if node.op == "output":
            seen.update(node.all_input_nodes)
            continue
        for operand in node.all_input_nodes:
            if operand not in seen:
                seen.add(operand)
                result.setdefault(node, []).append(operand)
    return result


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _resolve(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module
