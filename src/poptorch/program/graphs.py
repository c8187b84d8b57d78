"""What several passes need: looking at views, ancestors and dead code."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _make_graph_module
from torch.utils._pytree import tree_leaves

from poptorch.ops.effects import calls_host, communicates, is_ordered
from poptorch.ops.traits import traits_of
from poptorch.program.program import Program, is_write
from poptorch.program.tracing import tracing


def is_view(node: fx.Node) -> bool:
    """Whether the node's value may share memory with its first argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and is_view(source)
    return traits_of(node).is_view


def storage_root(node: fx.Node) -> fx.Node:
    """The node that allocated the memory that ``node`` looks at."""
    while is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def memory_root(node: fx.Node) -> fx.Node:
    """Like :func:`storage_root`, looking through operations that only sometimes make memory of their own."""
    while (is_view(node) or traits_of(node).may_be_view) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def descendants(starts: Iterable[fx.Node]) -> set[fx.Node]:
    """Everything computed from ``starts``, these included."""
    seen = set(starts)
    queue = list(seen)
    while queue:
        for user in queue.pop().users:
            if user not in seen:
                seen.add(user)
                queue.append(user)
    return seen


def has_side_effect(node: fx.Node) -> bool:
    """Whether the node must stay although its value is not used. Random draws are pure: they are numbered."""
    if node.op in ("placeholder", "output"):
        return True
    return is_write(node) or node.is_impure(impure_random=False) or calls_host(node) or _returns_nothing(node)


def runs_python(node: fx.Node) -> bool:
    """Whether the node calls a Python function of the user, itself or in a body."""
    return node.op == "call_function" and calls_host(node)


def _returns_nothing(node: fx.Node) -> bool:
    """Whether an operation has no value, and is there for what it does: an assertion about values."""
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns


def acts_in_order(program: Program) -> bool:
    """Whether the order of micro-batches shows: in state that they write, or in what they do to the world."""
    return any(has_side_effect(node) or is_ordered(node) for node in program.operations())


def exchanges_values(program: Program) -> bool:
    """Whether replicas meet in the middle of a micro-batch."""
    return any(communicates(node) for node in program.operations())


def remove_dead_code(program: Program) -> int:
    """Drop what is not needed; returns how many operations went."""
    before = len(program.graph.nodes)
    program.graph.eliminate_dead_code(has_side_effect)
    return before - len(program.graph.nodes)


def module_of(root: Any, graph: fx.Graph) -> fx.GraphModule:
    """A module of a graph, with what it needs of ``root``. It gets Python code if it is called, as few modules are."""
    with tracing():
        return _make_graph_module(root, graph)


def copy_of(program: Program) -> tuple[Program, dict[fx.Node, fx.Node]]:
    """The same program in a graph of its own, and the new node of each old one."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    values = graph.graph_copy(program.graph, copied)
    graph.output(values)
    module = module_of(program.graph_module, graph)
    return replace(program, graph_module=module, log=[*program.log]), copied


def insert_call(
    program: Program, before: fx.Node, target: object, args: tuple[Any, ...], like: fx.Node, **kwargs: object
) -> fx.Node:
    """Insert one operation whose value and annotations are derived from ``like`` by running it on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensor

    with program.graph.inserting_before(before):
        node = program.graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
    fakes: Any = fx.map_arg(args, lambda operand: operand.meta["val"])
    mode = next(f.fake_mode for f in tree_leaves(fakes) if isinstance(f, FakeTensor))
    with mode, torch.no_grad():
        node.meta["val"] = target(*fakes, **kwargs)  # type: ignore[operator]
    if "poptorch" in like.meta:
        node.meta["poptorch"] = like.meta["poptorch"]
    return node
