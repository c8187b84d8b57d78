"""The ``interpret`` level: a host program with one step for each operation, values dropped at their last use."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from poptorch.executable.host_code import Code
from poptorch.executable.host_program import (
    Apply,
    Argument,
    Constant,
    Factors,
    HandOver,
    HostProgram,
    Operation,
    Step,
    Value,
)
from poptorch.executable.host_verify import verify
from poptorch.host.factoring import NO_PRODUCTS, Products, with_right_factors
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
from poptorch.host.running.rendering import Naming, render
from poptorch.libraries.choice import MKL_ALONE, Libraries
from poptorch.ops.traits import traits_of
from poptorch.program.numerics import Numerics
from poptorch.program.opinfo import FIRST_ROUNDING_STREAM, info_of
from poptorch.program.program import Program, Role

Keywords = tuple[tuple[str, Any], ...]
"""Arguments by name."""

_GROUPS = {
    Role.PARAMETER: "parameters",
    Role.BUFFER: "buffers",
    Role.CONSTANT: "constants",
    Role.INPUT: "inputs",
    Role.LOSS_SCALE: "loss_scale",
}


def generate(
    program: Program,
    watch: Watch | None = None,
    buckets: Buckets = (),
    products: Products = NO_PRODUCTS,
    libraries: Libraries = MKL_ALONE,
) -> Code:
    """``run(parameters, buffers, constants, inputs, loss_scale, random) -> outputs`` for one micro-batch.

    ``watch`` is told of every operation, right after it: for looking on, not for speed. With ``buckets``, positions of
    outputs, there is one argument more: ``hand(bucket, values)`` is called as soon as all values of a bucket are final.
    These are not returned. ``products`` says which outputs are factors of each other, ``libraries`` what multiplies.
    """
    count = len(program.outputs) - len(products)
    if buckets:
        program = with_hand_outs(program, with_right_factors(buckets, products))
    placeholders = program.placeholders()
    # Weights that the program itself writes to have no copies that outlive the write.
    written = {port.name for port in program.mutated()}
    weights = {n: p.index for n, p in placeholders if p.role is Role.PARAMETER and p.name not in written}
    writer = _FunctionWriter(program.graph_module, program.numerics, weights, watch, libraries)
    writer.table.ports = dict(placeholders)
    for bucket in buckets:
        writer.bucket_products.append([(i, products[at].transposed) for i, at in enumerate(bucket) if at in products])
    for role, group in _GROUPS.items():
        writer.argument(group, [node for node, port in placeholders if port.role is role])
    writer.argument("random")
    if buckets:
        writer.argument("hand")
    writer.body(program.graph)
    return writer.finish("micro_batch", count, {} if buckets else products)


def generate_step(
    program: Program, update: fx.Graph, names: Sequence[str], libraries: Libraries = MKL_ALONE
) -> Code | None:
    """``run(parameters, buffers, constants, inputs, loss_scale, random, state_and_hyper) -> outputs`` with the update.

    The outputs are the program's without the gradients, which are dropped as they are used up. ``None`` where the
    update has to wait for all of them.
    """
    step = join_update(program, update, names)
    if step is None:
        return None
    writer = _FunctionWriter(step.graph_module, program.numerics, libraries=libraries)
    writer.table.ports = dict(zip(step.ports, program.ports, strict=True))
    for role, group in _GROUPS.items():
        nodes = zip(step.ports, program.ports, strict=True)
        writer.argument(group, [node for node, port in nodes if port.role is role])
    writer.argument("random")
    writer.argument("state", step.state)
    writer.body(step.graph_module.graph)
    return writer.finish("step")


def generate_flat(graph_module: fx.GraphModule, name: str, numerics: Numerics = Numerics()) -> Code:
    """A function that takes the source of random numbers and the graph's placeholders one by one."""
    writer = _FunctionWriter(graph_module, numerics)
    writer.argument("random")
    writer.argument("operands", graph_module.graph.find_nodes(op="placeholder"), apart=True)
    writer.body(graph_module.graph)
    return writer.finish(name)


class _FunctionWriter:
    """Makes the steps of one function and collects the functions that they call."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        numerics: Numerics,
        weights: dict[fx.Node, int] | None = None,
        watch: Watch | None = None,
        libraries: Libraries = MKL_ALONE,
    ) -> None:
        self._module = graph_module
        self._numerics = numerics
        self._half = HalfPlan(graph_module.graph, numerics, weights)
        self._reuse = Reuse(graph_module.graph) if numerics.plain and watch is None else None
        self._watch = watch
        self._wide: dict[fx.Node, int] = {}
        self._roundings = FIRST_ROUNDING_STREAM
        self._bindings = Bindings(libraries)
        self._functions: dict[str, Callable[..., Any]] = {}
        self._callables: dict[int, str] = {}
        self._numbers: dict[fx.Node, int] = {}
        self._naming = Naming([*_GROUPS.values()])
        self._arguments_made: list[Argument] = []
        self._steps: list[Step] = []
        self._results: tuple[int | None, ...] = ()
        self.bucket_products: list[list[tuple[int, tuple[bool, bool]]]] = []
        """Of each bucket, which of its values are left factors, with how the factors lie."""

        self._nodes: dict[int, fx.Node] = {}  # by step
        self.table = LineTable({})
        """Which operation each line computes."""

    def argument(self, name: str, nodes: Sequence[fx.Node] = (), *, apart: bool = False) -> None:
        """One argument of the function, with the placeholders that it brings."""
        self._arguments_made.append(Argument(name, tuple(map(self._number, nodes)), apart))

    def _number(self, node: fx.Node) -> int:
        """The number of the node's value."""
        if node not in self._numbers:
            self._numbers[node] = self._naming.add(node.name)
        return self._numbers[node]

    def body(self, graph: fx.Graph) -> None:
        """The steps of a graph."""
        last_use = _last_uses(graph, self._half)
        for node in graph.nodes:
            if node.op == "get_attr":
                self._steps.append(Constant(self._number(node), _resolve(self._module, str(node.target))))
            elif node.op == "output":
                self._results = tuple(self._result(value) for value in _flat(node.args[0]))
            elif node.op == "call_function" and not self._half.spares(node):
                self._node(node, last_use.get(node, ()))

    def _result(self, value: Any) -> int | None:
        if value is None:
            return None
        assert isinstance(value, fx.Node)
        return self._number(value)

    def _node(self, node: fx.Node, operands: Sequence[fx.Node]) -> None:
        """The steps of one operation, the last of which frees what is not needed any more."""
        before = len(self._steps)
        if node.target is hand_out:
            self._hand_out(node, operands)
            return
        self._operation(node)
        self._check(node)
        self._nodes |= dict.fromkeys(range(before, len(self._steps)), node)
        self._show(node)
        dead = [self._numbers[n] for n in operands if n in self._numbers and n.op != "get_attr"]
        if not node.users:
            dead.append(self._number(node))
        dead += [self._wide.pop(n) for n in self._half.dead_after(node) if n in self._wide]
        if dead:
            latest = self._steps[-1]
            assert isinstance(latest, Operation)
            self._steps[-1] = dataclasses.replace(latest, frees=tuple(dict.fromkeys(dead)))

    def _hand_out(self, node: fx.Node, operands: Sequence[fx.Node]) -> None:
        bucket, nodes = node.args
        assert isinstance(bucket, int)
        values = [self._number(value) for value in nodes]  # type: ignore[arg-type, union-attr]
        products = self.bucket_products[bucket]
        count = len(values) - len(products)
        handed, rights = values[:count], values[count:]
        dying = {self._numbers[n] for n in operands}
        pairs = [(at, values[at], right, how) for (at, how), right in zip(products, rights, strict=True)]
        for place, (at, left, right, transposed) in enumerate(pairs):
            later = {number for _, *both, _ in pairs[place + 1 :] for number in both}
            frees = tuple(dict.fromkeys(n for n in (left, right) if n in dying - later))
            handed[at] = self._factors(left, right, transposed, frees)
        self._steps.append(HandOver(bucket, tuple(handed)))

    def _factors(self, left: int, right: int, transposed: tuple[bool, bool], frees: tuple[int, ...] = ()) -> int:
        number = self._naming.add(f"{self._naming.names[left]}_product")
        self._steps.append(Factors(number, left, right, transposed, frees))
        return number

    def _operation(self, node: fx.Node) -> None:
        if self._half.takes(node):
            self._wide_operation(node)
        elif self._rounds_in_place(node):
            function = self._function(f"stochastic_{len(self._functions)}", StochasticInPlace(node.target))
            args, kwargs = self._arguments(node)
            self._call(node, function, args, (*kwargs, ("generator", self._rounding_stream())))
        else:
            self._plain_operation(node)

    def _rounds_in_place(self, node: fx.Node) -> bool:
        stochastic = self._numerics.stochastic_rounding and traits_of(node).is_in_place
        return stochastic and is_half(node.args[0]) and is_arithmetic(node)

    def _plain_operation(self, node: fx.Node) -> None:
        random = info_of(node).random
        args, kwargs = self._arguments(node)
        if random is not None and traits_of(node).is_random:
            function: Any = with_generator(node.target)
            kwargs = (*kwargs, ("generator", Apply("random", (random,))))
        else:
            variant = self._reuse.variant(node) if self._reuse is not None and not touches_half(node) else None
            if variant is not None:
                function, operands = variant
                call = Apply(self._callable(function, node, "_in_place"), self._given(operands), self._named(node))
                self._steps.append(Operation(self._number(node), call, (self._number(operands[0]),)))
                return
            function = self._bindings.find(node)
            if needs_safety_net(node):
                function = SafetyNet(node, function)
        self._call(node, self._callable(function, node), args, kwargs)

    def _call(self, node: fx.Node, function: str, args: tuple[Any, ...], kwargs: Keywords = ()) -> None:
        self._steps.append(Operation(self._number(node), Apply(function, args, kwargs)))

    def _arguments(self, node: fx.Node) -> tuple[tuple[Any, ...], Keywords]:
        return self._given(node.args), tuple((k, v) for k, v in self._named(node) if k != "generator")

    def _named(self, node: fx.Node) -> Keywords:
        return tuple((k, self._value(v)) for k, v in node.kwargs.items())

    def _given(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self._value(v) for v in values)

    def _wide_operation(self, node: fx.Node) -> None:
        """The operation on float32 copies of its float16 operands, its results rounded to their types."""
        function = self._callable(self._bindings.find(node), node)
        args = tuple(self._value(self._widened(a)) for a in node.args)
        kwargs = tuple((k, self._value(self._widened(v))) for k, v in node.kwargs.items())
        call = Apply(function, args, kwargs)
        if not is_half(node):
            self._call(node, function, args, kwargs)
        elif self._numerics.stochastic_rounding and is_arithmetic(node):
            narrow = self._function(f"narrow_{len(self._functions)}", stochastic_rounding(node))
            self._call(node, narrow, (call, self._rounding_stream()))
        elif isinstance(node.meta["val"], torch.Tensor):
            self._call(node, self._function("op_half", torch.Tensor.half), (call,))
        else:
            narrow = self._function(f"narrow_{len(self._functions)}", rounding(node))
            self._call(node, narrow, (call,))

    def _rounding_stream(self) -> Apply:
        self._roundings += 1
        return Apply("random", (self._roundings,))

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
        return self._view_of_copy(value, root)

    def _make_copy(self, root: fx.Node) -> int:
        number = self._naming.add(f"{self._naming.names[self._number(root)]}_f32")
        index, source = self._half.parameters.get(root), Value(self._number(root))
        if index is None:
            call = Apply(self._function("op_float", torch.Tensor.float), (source,))
        else:
            call = Apply("copies", (index, source))
        self._steps.append(Operation(number, call))
        return number

    def _view_of_copy(self, value: fx.Node, root: fx.Node) -> Value | Apply:
        if value is root:
            return Value(self._wide[root])
        inner = value.args[0]
        assert isinstance(inner, fx.Node)
        function = self._callable(self._bindings.find(value), value)
        return Apply(function, (self._view_of_copy(inner, root), *self._given(value.args[1:])), self._named(value))

    def _check(self, node: fx.Node) -> None:
        check = check_of(node) if self._numerics.exceptions else None
        if check is not None:
            function = self._function(f"check_{len(self._functions)}", check)
            operands = tuple(a for a in node.args if isinstance(a, (fx.Node, float, int, list, tuple)))
            self._steps.append(Operation(None, Apply(function, (self._value(node), self._value(operands)))))

    def _show(self, node: fx.Node) -> None:
        if self._watch is not None:
            known = [n for n in node.all_input_nodes if n in self._numbers]
            told = functools.partial(_told, self._watch, node, known)
            function = self._function(f"watch_{len(self._functions)}", told)
            self._steps.append(Operation(None, Apply(function, self._given([node, *known]))))

    def _function(self, name: str, value: Callable[..., Any]) -> str:
        self._functions[name] = value
        return name

    def _callable(self, function: Any, node: fx.Node, kind: str = "") -> str:
        known = self._callables.get(id(function))
        if known is None:
            target = getattr(node.target, "__name__", None) or str(node.target)
            known = "op_" + re.sub(r"\W", "_", str(target)) + f"{kind}_{len(self._callables)}"
            self._callables[id(function)] = known
            self._functions[known] = function
        return known

    def _value(self, value: Any) -> Any:
        """An argument with the numbers of values in place of nodes."""
        if isinstance(value, fx.Node):
            return Value(self._number(value))
        if isinstance(value, slice):
            return slice(self._value(value.start), self._value(value.stop), self._value(value.step))
        if isinstance(value, tuple):
            return tuple(self._value(v) for v in value)
        if isinstance(value, list):
            return [self._value(v) for v in value]
        if isinstance(value, dict):
            return {k: self._value(v) for k, v in value.items()}
        return value

    def finish(self, name: str, count: int | None = None, products: Products = NO_PRODUCTS) -> Code:
        """The function; of its first ``count`` results, ``products`` are left factors with right ones behind."""
        results = list(self._results)
        for at, right in products.items():
            left, other = results[at], results[right.position]
            assert left is not None
            assert other is not None
            results[at] = self._factors(left, other, right.transposed)
        self._results = tuple(results if count is None or not products else results[:count])
        names = tuple(self._naming.names)
        arguments, steps = tuple(self._arguments_made), tuple(self._steps)
        program = HostProgram(name, arguments, steps, self._results, names, {}, self._functions)
        verify(program)
        rendered = render(program)
        self.table.names = {node: names[number] for node, number in self._numbers.items()}
        for line, step in enumerate(rendered.steps, 1):
            if step in self._nodes:
                self.table.note(self._nodes[step], line)
        rendered.namespace[TABLE] = self.table
        return Code(rendered.run, rendered.source, program)


def _told(watch: Watch, node: fx.Node, known: Sequence[fx.Node], result: Any, *operands: Any) -> None:
    watch(node, result, dict(zip(known, operands, strict=True)))


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
