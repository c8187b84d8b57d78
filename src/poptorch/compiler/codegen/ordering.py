"""Prints and host calls in code that a compiler may reorder: each hands a token to the next.

``poptorch::host_call(inputs, key)`` becomes ``poptorch_ordered::host_call(token, inputs, key)``, whose first result is
the token for the next one; the last token is a result of the program. The order is then a matter of data, which every
compiler respects, and none of them can be dropped.
"""

from __future__ import annotations

import operator
import re
import threading
from typing import Any

import torch
from torch import fx

from poptorch.ops.effects import is_ordered

_library = torch.library.Library("poptorch_ordered", "DEF")  # lives as long as the process
_known: dict[Any, Any] = {}
_lock = threading.Lock()


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
            results = graph.call_function(_ordered(node.target), (token, *args), kwargs)
            token = graph.call_function(operator.getitem, (results, 0))
            values[node] = results if _gives_list(node.target) else graph.call_function(operator.getitem, (results, 1))
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
    return fx.GraphModule(graph_module, graph)


def _gives_list(overload: Any) -> bool:
    return str(overload._schema.returns[0].type) == "List[Tensor]"


def _ordered(overload: Any) -> Any:
    """The operator with tokens for one operator without, registered at the first request."""
    with _lock:
        if overload not in _known:
            _known[overload] = _register(overload)
        return _known[overload]


def _register(overload: Any) -> Any:
    name = re.sub(r"\W+", "_", overload._schema.name)
    schema = str(overload._schema)
    arguments = schema[schema.index("(") + 1 : schema.index(") -> ")]
    _library.define(f"{name}(Tensor effect_token, {arguments}) -> Tensor[]")

    def run(effect_token: torch.Tensor, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        results = overload(*args, **kwargs)
        token = torch.zeros(1)
        return [token, *results] if isinstance(results, (list, tuple)) else [token, results]

    _library.impl(name, run, "CPU")
    torch.library.register_fake(f"poptorch_ordered::{name}", run, lib=_library)
    return getattr(torch.ops.poptorch_ordered, name).default
