"""A training step as one graph, in which weights are updated as soon as their gradients exist.

Gradients of all weights together are as large as the weights. Where the update treats each weight by itself, a
gradient can be used up and dropped while back-propagation goes on to the layers before: they never exist as a whole.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from poptorch.host.interpret.half import is_half
from poptorch.ops.traits import traits_of
from poptorch.program.finality import final_positions, in_portions, last_reads
from poptorch.program.graphs import module_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Program, Role, value_of

BUCKET_BYTES = 1 << 19
"""Weights are updated together once their gradients take this much: a call for each bias would cost time."""

_LIST_OPERATIONS = ("_foreach_", "_fused_")


@dataclass
class JoinedStep:
    """Micro-batch and update as one graph; the outputs are the program's without the gradients."""

    graph_module: fx.GraphModule
    ports: list[fx.Node]
    """The program's own placeholders, in order."""

    state: list[fx.Node]
    """Placeholders of the optimizer's state and hyper-parameters, in the order of the update program."""

    buckets: list[list[str]] = field(default_factory=list)
    """Names of the parameters that are updated together, in the order of the updates."""


def join_update(
    program: Program, update: fx.Graph, names: Sequence[str], bucket_bytes: int = BUCKET_BYTES
) -> JoinedStep | None:
    """The step, or ``None`` where the update needs all gradients at once (gradient clipping) or numbers its roundings.

    ``update`` takes weights and gradients of the parameters in the order of ``names``, then its state.
    """
    if not program.numerics.plain or any(is_half(node) for node in program.graph.nodes):
        return None
    written = {port.name for port in program.mutated()}
    if written & set(names):
        return None
    owners = _owners(update, len(names))
    if owners is None:
        return None
    return _StepBuilder(program, update, names, owners).build(bucket_bytes)


# -- which parameter a value of the update belongs to ----------------------------------------------------------------


def _owners(graph: fx.Graph, count: int) -> dict[fx.Node, int] | None:
    """For each value of the update that belongs to one parameter, which one; ``None`` if some belong to several.

    Lists go through the update side by side: what is at the same place in two lists belongs to the same parameter. A
    value that a list has more than once is common to all, as hyper-parameters are.
    """
    parent: dict[fx.Node, fx.Node] = {}

    def find(node: fx.Node) -> fx.Node:
        while parent.setdefault(node, node) is not node:
            node = parent[node]
        return node

    def join(nodes: Sequence[fx.Node]) -> None:
        for node in nodes[1:]:
            parent[find(node)] = find(nodes[0])

    placeholders = graph.find_nodes(op="placeholder")
    for index in range(count):
        join([placeholders[index], placeholders[count + index]])
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if _is_list_operation(node):
            for place in zip(*_node_lists(node), strict=True):
                join([n for n in place if n is not None])
        elif node.target is operator.getitem and _is_list_operation(node.args[0]):
            lists = _node_lists(node.args[0])
            join([node, *(n for n in (places[node.args[1]] for places in lists) if n is not None)])
    roots = {find(placeholders[index]): index for index in range(count)}
    if len(roots) != count:
        return None
    owners = {node: roots[find(node)] for node in list(parent) if find(node) in roots}
    return owners if _spread(graph, owners) else None


def _spread(graph: fx.Graph, owners: dict[fx.Node, int]) -> bool:
    """Give single operations the owner of their operands; false if there are several, or a common value is written."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if _is_list_operation(node):
            first = _node_lists(node)[0]
            if any(n is None or n not in owners for n in first):
                return False
            continue
        if node.target is operator.getitem and _is_list_operation(node.args[0]):
            continue
        found = {owners[n] for n in node.all_input_nodes if n in owners}
        if len(found) > 1 or any(_is_list_operation(n) for n in node.all_input_nodes):
            return False
        if found:
            owners[node] = found.pop()
        elif traits_of(node).is_in_place:
            return False
    return True


def _is_list_operation(node: object) -> bool:
    return isinstance(node, fx.Node) and traits_of(node).name.startswith(_LIST_OPERATIONS)


def _node_lists(node: Any) -> list[list[fx.Node | None]]:
    """The lists of tensors among the operands; ``None`` stands for a tensor that all parameters share."""
    values = [*node.args, *node.kwargs.values()]
    lists = [v for v in values if isinstance(v, (list, tuple)) and v and all(isinstance(n, fx.Node) for n in v)]
    uses = [Counter(v) for v in lists]
    return [[n if len(v) == 1 or used[n] == 1 else None for n in v] for v, used in zip(lists, uses, strict=True)]


# -- the graph of both -----------------------------------------------------------------------------------------------


class _StepBuilder:
    """Copies the program and puts the parts of the update after the operations that they wait for."""

    def __init__(self, program: Program, update: fx.Graph, names: Sequence[str], owners: dict[fx.Node, int]) -> None:
        self._program = program
        self._update = update
        self._names = names
        self._owners = owners
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._parts: dict[fx.Node, list[int]] = {}

    def build(self, bucket_bytes: int) -> JoinedStep:
        ports = [self._copy(node) for node, _ in self._program.placeholders()]
        operands = self._update.find_nodes(op="placeholder")
        state = [self._input(node, f"state_{i}") for i, node in enumerate(operands[2 * len(self._names) :])]
        at = {port.name: node for node, port in self._program.placeholders() if port.role is Role.PARAMETER}
        outputs = self._program.returned()
        gradients = {output.name: value for output, value in outputs if output.kind is OutputKind.GRADIENT}
        buckets = dict(self._buckets(at, gradients, bucket_bytes))
        for node in self._program.graph.nodes:
            if node.op not in ("placeholder", "output"):
                self._copy(node)
            for index in buckets.get(node, ()):
                name = self._names[index]
                self._copies[operands[index]] = self._copies[at[name]]
                self._copies[operands[len(self._names) + index]] = self._copies[gradients[name]]
            if node in buckets:
                self._apply(set(buckets[node]))
        kept = [value for output, value in outputs if output.kind is not OutputKind.GRADIENT]
        output = self._graph.output(tuple(self._copies[value] for value in kept))
        output.meta["val"] = tuple(value.meta.get("val") for value in kept)
        module = module_of(self._program.graph_module, self._graph)
        return JoinedStep(module, ports, state, [[self._names[i] for i in bucket] for bucket in buckets.values()])

    def _buckets(
        self, at: dict[str, fx.Node], gradients: dict[str, fx.Node], least: int
    ) -> Iterator[tuple[fx.Node, list[int]]]:
        """Which parameters are updated after which operation: the last one that reads weight or gradient."""
        nodes = list(self._program.graph.nodes)
        last = last_reads(self._program.graph)
        values = [gradients[name] for name in self._names]
        final = final_positions(self._program, values)
        ready = {i: max(last[at[name]], final[i]) for i, name in enumerate(self._names)}
        sizes = {i: value_of(v).numel() * value_of(v).element_size() for i, v in enumerate(values)}
        return ((nodes[position], portion) for position, portion in in_portions(ready, sizes, least))

    def _copy(self, node: fx.Node) -> fx.Node:
        if node not in self._copies:
            self._copies[node] = self._graph.node_copy(node, lambda n: self._copies[n])
        return self._copies[node]

    def _input(self, node: fx.Node, name: str) -> fx.Node:
        """A placeholder of the update, under a name that the program does not use."""
        made = self._copies[node] = self._graph.placeholder(name)
        made.meta = dict(node.meta)
        return made

    def _apply(self, bucket: set[int]) -> None:
        """The update's operations for some parameters; what is common to all comes with the first of them."""
        for node in self._update.nodes:
            if node.op != "call_function":
                continue
            if _is_list_operation(node):
                self._apply_list(node, bucket)
            elif node.target is operator.getitem and _is_list_operation(node.args[0]):
                chosen = self._parts[node.args[0]]
                if node.args[1] in chosen:
                    source = self._copies[node.args[0]]
                    self._put(node, (source, chosen.index(node.args[1])), {})
            elif self._owners.get(node, None) in (None, *bucket):
                self._copy(node)

    def _apply_list(self, node: fx.Node, bucket: set[int]) -> None:
        first = _node_lists(node)[0]
        chosen = [i for i, n in enumerate(first) if n is not None and self._owners[n] in bucket]
        self._parts[node] = chosen
        if not chosen:
            return

        def part(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [value[i] for i in chosen] if len(value) == len(first) else list(value)
            return value

        args = tuple(part(a) for a in node.args)
        self._put(node, args, {k: part(v) for k, v in node.kwargs.items()})

    def _put(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A variant of the update's node with the operands of this bucket."""

        def here(value: fx.Node) -> fx.Node:
            return self._copies.get(value, value)

        args, kwargs = fx.node.map_arg(args, here), fx.node.map_arg(kwargs, here)
        made = self._graph.create_node("call_function", node.target, args, kwargs)
        made.meta = dict(node.meta)
        self._copies[node] = made
