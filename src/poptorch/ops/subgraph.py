"""Bodies of loops and branches: recorded once, kept as text, run as straight-line code.

A body travels as one string argument of the operator that runs it, so it needs nothing from the user's
Python, survives being written to a file, and passes through any graph transformation unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from poptorch.errors import createPoptorchError

_NAMED_TYPES: dict[str, type] = {
    "dtype": torch.dtype,
    "memory_format": torch.memory_format,
    "layout": torch.layout,
}


def graph_to_text(graph: fx.Graph) -> str:
    """The graph as JSON: one entry per node, inputs first, results last."""
    index: dict[fx.Node, int] = {}
    entries: list[Any] = []
    for node in graph.nodes:
        index[node] = len(index)
        if node.op == "placeholder":
            entries.append(["input"])
        elif node.op == "output":
            entries.append(["output", _encode(list(node.args[0]), index)])
        elif node.op == "call_function":
            kwargs = {key: _encode(value, index) for key, value in node.kwargs.items()}
            entries.append([_name_of(node.target), [_encode(value, index) for value in node.args], kwargs])
        else:
            raise createPoptorchError(
                f"The body of a loop or branch holds {node.format_node()}, which is not supported."
            )
    return json.dumps(entries, separators=(",", ":"))


def graph_from_text(text: str) -> fx.Graph:
    """The graph that :func:`graph_to_text` wrote."""
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    for entry in json.loads(text):
        if entry[0] == "input":
            nodes.append(graph.placeholder(f"input_{len(nodes)}"))
        elif entry[0] == "output":
            nodes.append(graph.output(tuple(_decode(entry[1], nodes))))
        else:
            name, args, kwargs = entry
            decoded = {key: _decode(value, nodes) for key, value in kwargs.items()}
            nodes.append(graph.call_function(_target(name), tuple(_decode(value, nodes) for value in args), decoded))
    return graph


@lru_cache(maxsize=512)
def runnable(text: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The body as a function of its inputs."""
    module = fx.GraphModule(torch.nn.Module(), graph_from_text(text))
    return module.forward


@lru_cache(maxsize=512)
def is_random(text: str) -> bool:
    """Whether the body, or a body inside it, draws random numbers."""
    return any(node_is_random(node) for node in graph_from_text(text).nodes)


def node_is_random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def subgraphs(node: fx.Node) -> list[fx.Graph]:
    """The bodies that a loop or branch of a captured graph runs, for those who want to look inside."""
    return [graph_from_text(text) for text in body_texts(node)]


def body_texts(node: fx.Node) -> list[str]:
    """The same bodies as they travel: as text."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target.namespace.startswith("poptorch"):
        return []
    names = [argument.name for argument in node.target._schema.arguments]
    return [
        value
        for name, value in zip(names, node.args, strict=False)
        if name.endswith("body") and isinstance(value, str) and value
    ]


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._opname}.{target._overloadname}"
    module, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
    if module == "_operator" and name == "getitem":
        return "getitem"
    raise createPoptorchError(f"The body of a loop or branch calls {target}, which is not an operator of torch.")


def _target(name: str) -> Any:
    if name == "getitem":
        import operator

        return operator.getitem
    namespace, operator_name, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator_name), overload)


def _encode(value: Any, index: dict[fx.Node, int]) -> Any:
    """Plain JSON values stay as they are; everything else becomes a dictionary with one entry."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": repr(value)}  # JSON has no infinities
    if isinstance(value, fx.Node):
        return {"node": index[value]}
    if isinstance(value, (list, tuple)):
        return [_encode(item, index) for item in value]
    if isinstance(value, slice):
        return {"slice": [_encode(item, index) for item in (value.start, value.stop, value.step)]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    for name, kind in _NAMED_TYPES.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    raise createPoptorchError(
        f"The body of a loop or branch uses a {type(value).__name__} as an argument, which is not supported."
    )


def _decode(value: Any, nodes: Sequence[fx.Node]) -> Any:
    if isinstance(value, list):
        return [_decode(item, nodes) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "node":
        return nodes[content]
    if kind == "float":
        return float(content)
    if kind == "slice":
        return slice(*[_decode(item, nodes) for item in content])
    if kind == "device":
        return torch.device(content)
    if kind == "complex":
        return complex(*content)
    if kind in _NAMED_TYPES:
        return getattr(torch, content)
    raise createPoptorchError(f"The text of a loop or branch body has an unknown entry {kind!r}: it is damaged.")
