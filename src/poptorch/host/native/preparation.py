"""What can be computed from the weights alone, taken out of a graph into one of its own.

The graph that is left reads the results as attributes. It can be rewritten and searched for more such values as often
as one likes: nothing is evaluated before :meth:`Preparation.run` is given the weights.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from poptorch.ops.traits import traits_of

_NAMESPACES = frozenset({"aten", "prims", "mkl", "mkldnn"})
"""Whose operators depend on nothing but their operands."""


class Preparation:
    """The part of a graph that depends on the weights alone.

    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> with FakeTensorMode() as mode:
    ...     x, w = torch.empty(2), torch.empty(2)
    ...     module = make_fx(lambda x, w: x * w.exp())(x, w)
    >>> preparation = Preparation(module, mode, {module.graph.find_nodes(op="placeholder")[1]: w})
    >>> preparation.hoist()
    1
    >>> preparation.finish()
    >>> preparation.run([torch.zeros(2)])
    [tensor([1., 1.])]
    """

    def __init__(
        self, graph_module: fx.GraphModule, mode: FakeTensorMode, weights: Mapping[fx.Node, torch.Tensor]
    ) -> None:
        """``weights``: the placeholders that become attributes, with their descriptions."""
        self._module = graph_module
        self._mode = mode
        self._graph = fx.Graph()
        self._values: dict[str, fx.Node] = {}  # by name of the attribute
        self.descriptions: list[torch.Tensor] = []
        """Of the prepared values, once they are all known."""

        self.graph = fx.Graph()
        """What computes the prepared values from all weights."""

        for node in graph_module.graph.find_nodes(op="placeholder"):
            if node in weights:
                node.meta["val"] = weights[node]
                self._replace(node, self._graph.placeholder(node.name))

    @property
    def _gm_graph(self) -> fx.Graph:
        return self._module.graph

    # -- finding -------------------------------------------------------------------------------------------------

    def describe(self) -> None:
        """Give every node that a rewriting made its description."""
        for node in self._gm_graph.nodes:
            if node.op == "call_function" and "val" not in node.meta:
                node.meta["val"] = self._described(node)

    def _described(self, node: fx.Node) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        if _packs(node):
            # The shape of a packed value is the library's secret: ask it. Its elements stay hidden.
            zeros = fx.map_arg(node.args, lambda n: torch.zeros(n.meta["val"].shape, dtype=n.meta["val"].dtype))
            packed = node.target(*zeros)  # type: ignore[operator]
            with self._mode:
                if isinstance(packed, (list, tuple)):
                    return [torch.empty(p.shape, dtype=p.dtype) for p in packed]
                return torch.empty(packed.shape, dtype=packed.dtype)
        with self._mode, torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def _constant_nodes(self) -> Iterator[fx.Node]:
        """The nodes that depend on weights only."""
        constant: dict[fx.Node, frozenset[fx.Node]] = {}  # with the attributes that they come from
        neutral: set[fx.Node] = set()  # without any operand, or of such
        for node in self._gm_graph.nodes:
            if node.op == "get_attr" and node.target in self._values:
                constant[node] = frozenset({node})
                yield node
            elif node.op == "call_function" and _is_pure(node):
                operands = node.all_input_nodes
                if all(o in neutral for o in operands):
                    neutral.add(node)
                elif all(o in neutral or o in constant for o in operands):
                    roots = frozenset().union(*(constant[o] for o in operands if o in constant))
                    if _packs(node) or _num_bytes(node) <= sum(map(_num_bytes, roots)):
                        constant[node] = roots
                        yield node

    def hoist(self) -> int:
        """Move all that depends on weights only; returns the number of values that the graph newly reads."""
        self.describe()
        constant = dict.fromkeys(self._constant_nodes())
        moved: dict[fx.Node, fx.Node] = {}

        def take(node: fx.Node) -> fx.Node:
            if node.op == "get_attr":
                return self._values[str(node.target)]
            if node not in moved:  # what has no operands is made in both graphs
                moved[node] = self._graph.node_copy(node, take)
            return moved[node]

        found = 0
        for node in constant:
            if node.op != "get_attr" and any(user not in constant for user in node.users):
                self._replace(node, take(node))
                found += 1
        self._clean()
        return found

    def _replace(self, node: fx.Node, source: fx.Node) -> None:
        """Make a node of the graph an attribute that stands for ``source``."""
        name = f"prepared_{len(self._values)}"
        self._values[name] = source
        self._module.register_buffer(name, node.meta["val"], persistent=False)
        with self._gm_graph.inserting_before(node):
            attribute = self._gm_graph.get_attr(name)
        attribute.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(attribute)
        self._gm_graph.erase_node(node)

    def _clean(self) -> None:
        self._gm_graph.eliminate_dead_code()
        self._module.recompile()

    # -- running -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Make the attributes inputs of the graph, after all others, in the order of what :meth:`run` returns."""
        from torch._functorch.compile_utils import fx_graph_cse

        graph = self._gm_graph
        attributes: dict[str, list[fx.Node]] = {}
        for node in graph.find_nodes(op="get_attr"):
            if node.target in self._values:
                attributes.setdefault(str(node.target), []).append(node)
        placeholders = graph.find_nodes(op="placeholder")
        added = []
        with graph.inserting_before(placeholders[-1].next):
            for name, nodes in attributes.items():
                added.append(graph.placeholder(name))
                added[-1].meta["val"] = nodes[0].meta["val"]
        for nodes, new in zip(attributes.values(), added, strict=True):
            for node in nodes:
                node.replace_all_uses_with(new)
                graph.erase_node(node)
        self._own_outputs(set(added))
        for name in self._values:
            delattr(self._module, name)
        self.descriptions = [node.meta["val"] for node in added]
        self._graph.output([self._values[name] for name in attributes])
        self._graph.eliminate_dead_code()
        for node in self._graph.nodes:
            node.meta.clear()  # descriptions of outputs would keep these apart
        shared = fx_graph_cse(self._graph)  # weights that are used twice are packed once
        self.graph = shared
        self._clean()
        assert graph.find_nodes(op="placeholder") == [*placeholders, *added]

    def _own_outputs(self, prepared: set[fx.Node]) -> None:
        """What is returned must be the caller's own: prepared values are copied in every call."""
        output = self._gm_graph.output_node()

        def copied(node: fx.Node) -> fx.Node:
            clone = self._gm_graph.call_function(torch.ops.aten.clone.default, (node,))
            clone.meta["val"] = node.meta["val"]
            return clone

        with self._gm_graph.inserting_before(output):
            copies = {n: copied(n) for n in output.all_input_nodes if n in prepared}
        output.args = fx.map_arg(output.args, lambda n: copies.get(n, n))

    def run(self, weights: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """The prepared values for these weights."""
        interpreter = fx.Interpreter(fx.GraphModule({}, self.graph))
        return interpreter.run(*weights, enable_io_processing=False)


def _is_pure(node: fx.Node) -> bool:
    target: Any = node.target
    if target is operator.getitem or _packs(node):
        return True
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _NAMESPACES:
        return False
    traits = traits_of(target)
    return not traits.is_in_place and not traits.is_random


def _packs(node: fx.Node) -> bool:
    """Whether the node gives a weight the layout of a library."""
    target: Any = node.target
    packet = getattr(target, "overloadpacket", target)
    return isinstance(packet, torch._ops.OpOverloadPacket) and "_reorder_" in str(packet)


def _num_bytes(node: fx.Node) -> int:
    """Memory of a node's value; views take none of their own."""
    value = node.meta["val"]
    tensors: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
    return sum(t.untyped_storage().nbytes() for t in tensors if isinstance(t, torch.Tensor))
