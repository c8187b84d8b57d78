"""The ``interpret`` level: the graph as straight-line Python calls, values dropped at their last use."""

from __future__ import annotations

import functools
import keyword
import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from poptorch.executable.host_code import Code
from poptorch.host.interpret.bindings import Bindings
from poptorch.host.interpret.exceptions import check_of
from poptorch.host.interpret.generators import with_generator
from poptorch.host.interpret.half import (
    HalfPlan,
    SafetyNet,
    is_arithmetic,
    is_half,
    needs_safety_net,
    rounding,
    touches_half,
    wide_constant,
)
from poptorch.host.interpret.hand_outs import Buckets, hand_out, with_hand_outs
from poptorch.host.interpret.in_place import Reuse
from poptorch.host.interpret.lines import TABLE, LineTable, Watch
from poptorch.host.interpret.stochastic import StochasticInPlace, stochastic_rounding
from poptorch.host.interpret.update_in_backward import join_update
from poptorch.ops.traits import traits_of
from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import FIRST_ROUNDING_STREAM, info_of
from poptorch.program.program import Program, Role
from poptorch.runtime.values.weights import copies_of

_GROUPS = {
    Role.PARAMETER: "parameters",
    Role.BUFFER: "buffers",
    Role.CONSTANT: "constants",
    Role.INPUT: "inputs",
    Role.LOSS_SCALE: "loss_scale",
}


def generate(program: Program, watch: Watch | None = None, buckets: Buckets = ()) -> Code:
    """``run(parameters, buffers, constants, inputs, loss_scale, random) -> outputs`` for one micro-batch.

    ``watch`` is told of every operation, right after it: for looking on, not for speed. With ``buckets``, positions of
    outputs, there is one argument more: ``hand(bucket, values)`` is called as soon as all values of a bucket are final.
    These are not returned.
    """
    if buckets:
        program = with_hand_outs(program, buckets)
    placeholders = program.placeholders()
    # Weights that the program itself writes to have no copies that outlive the write.
    written = {port.name for port in program.mutated()}
    weights = {n: p.index for n, p in placeholders if p.role is Role.PARAMETER and p.name not in written}
    writer = _Writer(program.graph_module, program.numerics, weights, watch)
    writer.table.ports = dict(placeholders)
    for role, group in _GROUPS.items():
        names = [writer.name(node) for node, port in placeholders if port.role is role]
        if names:
            writer.line(f"{', '.join(names)}, = {group}")
    writer.prepare_copies("parameters")
    writer.body(program.graph)
    return writer.finish("micro_batch", [*_GROUPS.values(), "random", *(["hand"] if buckets else [])])


def generate_step(program: Program, update: fx.Graph, names: Sequence[str]) -> Code | None:
    """``run(parameters, buffers, constants, inputs, loss_scale, random, state_and_hyper) -> outputs`` with the update.

    The outputs are the program's without the gradients, which are dropped as they are used up. ``None`` where the
    update has to wait for all of them.
    """
    step = join_update(program, update, names)
    if step is None:
        return None
    writer = _Writer(step.graph_module, program.numerics)
    writer.table.ports = dict(zip(step.ports, program.ports, strict=True))
    for role, group in _GROUPS.items():
        nodes = zip(step.ports, program.ports, strict=True)
        names = [writer.name(node) for node, port in nodes if port.role is role]
        if names:
            writer.line(f"{', '.join(names)}, = {group}")
    if step.state:
        writer.line(f"{', '.join(map(writer.name, step.state))}, = state")
    writer.body(step.graph_module.graph)
    return writer.finish("step", [*_GROUPS.values(), "random", "state"])


def generate_flat(graph_module: fx.GraphModule, name: str, numerics: Numerics = Numerics()) -> Code:
    """A function that takes the source of random numbers and the graph's placeholders one by one."""
    writer = _Writer(graph_module, numerics)
    parameters = [writer.name(n) for n in graph_module.graph.nodes if n.op == "placeholder"]
    writer.body(graph_module.graph)
    return writer.finish(name, ["random", *parameters])


class _Writer:
    """Writes the lines of one function and collects the globals that they use."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        numerics: Numerics,
        weights: dict[fx.Node, int] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._module = graph_module
        self._numerics = numerics
        self._half = HalfPlan(graph_module.graph, numerics, weights)
        self._reuse = Reuse(graph_module.graph) if numerics.plain and watch is None else None
        self._watch = watch
        self._wide: dict[fx.Node, str] = {}
        self._roundings = FIRST_ROUNDING_STREAM
        self._bindings = Bindings()
        self._globals: dict[str, Any] = {}
        self._callables: dict[int, str] = {}
        self._names: dict[fx.Node, str] = {}
        self.table = LineTable(self._names)
        """Which operation each line computes."""

        self._taken: set[str] = set(_GROUPS.values()) | {"random", "copies", "state", "hand"}
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
        last_use = _last_uses(graph, self._half)
        for node in graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "get_attr":
                self._globals[self.name(node)] = _resolve(self._module, str(node.target))
                continue
            if node.op == "output":
                self.line(f"return {self._value(tuple(_flat(node.args[0])))}")
                continue
            if self._half.spares(node):
                continue
            before = len(self._lines)
            self._operation(node)
            self._check(node)
            self.table.note(node, range(before, len(self._lines)))
            self._show(node)
            dead = [self._names[n] for n in last_use.get(node, ()) if n in self._names and n.op != "get_attr"]
            if not node.users:
                dead.append(self.name(node))
            dead += [self._wide.pop(n) for n in self._half.dead_after(node) if n in self._wide]
            if dead:
                self.line(f"del {', '.join(dict.fromkeys(dead))}")

    def prepare_copies(self, group: str) -> None:
        """Make the float32 copies of the weights available, if an operation uses one."""
        if any(self._half.root(o) in self._half.parameters for n in self._module.graph.nodes if self._half.takes(n)
               for o in n.all_input_nodes):  # fmt: skip
            self._globals["copies_of"] = copies_of
            self.line(f"copies = copies_of({group})")

    def _operation(self, node: fx.Node) -> None:
        if node.target is hand_out:
            self._call(node, "hand", self._arguments(node))
        elif self._half.takes(node):
            self._wide_operation(node)
        elif self._rounds_in_place(node):
            function = self._global(f"stochastic_{len(self._globals)}", StochasticInPlace(node.target))
            self._call(node, function, [*self._arguments(node), f"generator={self._rounding_stream()}"])
        else:
            self._plain_operation(node)

    def _rounds_in_place(self, node: fx.Node) -> bool:
        stochastic = self._numerics.stochastic_rounding and traits_of(node).is_in_place
        return stochastic and is_half(node.args[0]) and is_arithmetic(node)

    def _plain_operation(self, node: fx.Node) -> None:
        random = info_of(node).random
        if random is not None and traits_of(node).is_random:
            function: Any = with_generator(node.target)
            extra = [f"generator=random({random})"]
        else:
            variant = self._reuse.variant(node) if self._reuse is not None and not touches_half(node) else None
            if variant is not None:
                self._in_place_operation(node, *variant)
                return
            function, extra = self._bindings.find(node), []
            if needs_safety_net(node):
                function = SafetyNet(node, function)
        self._call(node, self._callable(function, node), self._arguments(node) + extra)

    def _in_place_operation(self, node: fx.Node, function: Any, operands: Sequence[Any]) -> None:
        arguments = [self._value(a) for a in operands]
        arguments += [f"{k}={self._value(v)}" for k, v in node.kwargs.items()]
        self._call(node, self._callable(function, node, "_in_place"), arguments)

    def _call(self, node: fx.Node, function: str, arguments: list[str]) -> None:
        self.line(f"{self.name(node)} = {function}({', '.join(arguments)})")

    def _arguments(self, node: fx.Node) -> list[str]:
        arguments = [self._value(a) for a in node.args]
        return arguments + [f"{k}={self._value(v)}" for k, v in node.kwargs.items() if k != "generator"]

    def _wide_operation(self, node: fx.Node) -> None:
        """The operation on float32 copies of its float16 operands, its results rounded to their types."""
        function = self._callable(self._bindings.find(node), node)
        arguments = [self._value(self._widened(a)) for a in node.args]
        arguments += [f"{k}={self._value(self._widened(v))}" for k, v in node.kwargs.items()]
        call = f"{function}({', '.join(arguments)})"
        if not is_half(node):
            self._call(node, function, arguments)
        elif self._numerics.stochastic_rounding and is_arithmetic(node):
            narrow = self._global(f"narrow_{len(self._globals)}", stochastic_rounding(node))
            self._call(node, narrow, [call, self._rounding_stream()])
        elif isinstance(node.meta["val"], torch.Tensor):
            self.line(f"{self.name(node)} = {call}.half()")
        else:
            narrow = self._global(f"narrow_{len(self._globals)}", rounding(node))
            self._call(node, narrow, [call])

    def _rounding_stream(self) -> str:
        self._roundings += 1
        return f"random({self._roundings})"

    def _widened(self, value: Any) -> Any:
        """The argument with float32 copies of its float16 tensors, which are made on the way."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._widened(v) for v in value)
        if not isinstance(value, fx.Node):
            return wide_constant(value)
        if not is_half(value):
            return value
        root = self._half.root(value)
        if root not in self._wide:
            self._wide[root] = self._make_copy(root)
        return _Text(self._view_of_copy(value, root))

    def _make_copy(self, root: fx.Node) -> str:
        name = self.name(root) + "_f32"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        index = self._half.parameters.get(root)
        source = f"copies({index}, {self.name(root)})" if index is not None else f"{self.name(root)}.float()"
        self.line(f"{name} = {source}")
        return name

    def _view_of_copy(self, value: fx.Node, root: fx.Node) -> str:
        if value is root:
            return self._wide[root]
        inner = value.args[0]
        assert isinstance(inner, fx.Node)
        function = self._callable(self._bindings.find(value), value)
        rest = [self._value(a) for a in value.args[1:]]
        rest += [f"{k}={self._value(v)}" for k, v in value.kwargs.items()]
        return f"{function}({', '.join([self._view_of_copy(inner, root), *rest])})"

    def _check(self, node: fx.Node) -> None:
        check = check_of(node) if self._numerics.exceptions else None
        if check is not None:
            function = self._global(f"check_{len(self._globals)}", check)
            operands = [a for a in node.args if isinstance(a, (fx.Node, float, int, list, tuple))]
            self.line(f"{function}({self.name(node)}, {self._value(tuple(operands))})")

    def _show(self, node: fx.Node) -> None:
        if self._watch is not None:
            function = self._global(f"watch_{len(self._globals)}", functools.partial(self._watch, node))
            known = [n for n in node.all_input_nodes if n in self._names]
            operands = "".join(f"{self._names[n]}, " for n in known)
            names = self._global(f"operands_{len(self._globals)}", tuple(known))
            self.line(f"{function}({self.name(node)}, dict(zip({names}, ({operands}))))")

    def _global(self, name: str, value: Any) -> str:
        self._globals[name] = value
        return name

    def _callable(self, function: Any, node: fx.Node, kind: str = "") -> str:
        known = self._callables.get(id(function))
        if known is None:
            target = getattr(node.target, "__name__", None) or str(node.target)
            known = "op_" + re.sub(r"\W", "_", str(target)) + f"{kind}_{len(self._callables)}"
            self._callables[id(function)] = known
            self._globals[known] = function
        return known

    def _value(self, value: Any) -> str:
        if isinstance(value, _Text):
            return value
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

    def finish(self, name: str, parameters: Sequence[str]) -> Code:
        source = "\n".join([f"def {name}({', '.join(parameters)}):", *self._lines]) + "\n"
        namespace = {**self._globals, TABLE: self.table}
        exec(compile(source, f"<poptorch {name}>", "exec"), namespace)  # our own text, never the user's
        return Code(namespace[name], source)


class _Text(str):
    """An expression of the generated code, not a string of the program."""


def _last_uses(graph: fx.Graph, half: HalfPlan) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the values that are not needed after it."""
    seen: set[fx.Node] = set()
    result: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        if node.op == "output":
            seen.update(node.all_input_nodes)
            continue
        for operand in half.operands(node):
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
