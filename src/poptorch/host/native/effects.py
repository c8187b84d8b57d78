"""Prints and host calls in code that a compiler may reorder: each hands a token to the next.

``poptorch::host_call(inputs, key)`` becomes ``poptorch_ordered::host_call(token, inputs, key)``, whose first result is
the token for the next one; the last token is a result of the program. The order is then a matter of data, which every
compiler respects, and none of them can be dropped.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import fx

from poptorch.host.native.derived import DerivedOperators
from poptorch.ops.effects import is_ordered


def is_effectful(graph: fx.Graph) -> bool:
    """Whether the graph prints or calls the host."""
    return any(map(is_ordered, graph.nodes))


def with_tokens(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph in which effects wait for each other; it has one more output at the end, the last token.

    The first effect takes the last input for a token: any tensor will do.
    """
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in graph_module.graph.find_nodes(op="placeholder"):
        token = values[node] = graph.node_copy(node)
    for node in graph_module.graph.nodes:
        if node in values:
            continue
        if node.op == "output":
            graph.output((*fx.map_arg(node.args[0], values.__getitem__), token))
            continue
        if node.target is operator.getitem and is_ordered(node.args[0]):
            values[node] = graph.call_function(operator.getitem, (values[node.args[0]], node.args[1] + 1))
        elif is_ordered(node):
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            results = graph.call_function(_ordered.of(node.target), (token, *args), kwargs)
            token = graph.call_function(operator.getitem, (results, 0))
            values[node] = results if _gives_list(node.target) else graph.call_function(operator.getitem, (results, 1))
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
    return fx.GraphModule(graph_module, graph)


def _gives_list(overload: Any) -> bool:
    return str(overload._schema.returns[0].type) == "List[Tensor]"


def _register(operators: DerivedOperators, overload: Any) -> Any:
    """The operator with tokens for one operator without."""
    name = re.sub(r"\W+", "_", overload._schema.name)
    schema = str(overload._schema)
    arguments = schema[schema.index("(") + 1 : schema.index(") -> ")]

    def run(effect_token: torch.Tensor, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        results = overload(*args, **kwargs)
        token = torch.zeros(1)
        return [token, *results] if isinstance(results, (list, tuple)) else [token, results]

    return operators.define(name, f"(Tensor effect_token, {arguments}) -> Tensor[]", run, run)


_ordered = DerivedOperators("poptorch_ordered", _register)
