"""Bodies of loops and branches: recorded once, kept as text, run as straight-line code.

A body travels as one string argument of the operator that runs it, so it needs nothing from the user's
Python, survives being written to a file, and passes through any graph transformation unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import fx

from poptorch.encoding import Decoder, Encoder, NotEncodable
from poptorch.errors import createPoptorchError
from poptorch.ops.traits import traits_of


def graph_to_text(graph: fx.Graph) -> str:
    """The graph as JSON: one entry per node, inputs first, results last."""
    try:
        return json.dumps(Encoder().encode_graph(graph), separators=(",", ":"))
    except NotEncodable as what:
        raise createPoptorchError(f"The body of a loop or branch uses {what}, which is not supported.") from what


def graph_from_text(text: str) -> fx.Graph:
    """The graph that :func:`graph_to_text` wrote."""
    try:
        return Decoder().decode_graph(json.loads(text))
    except NotEncodable as what:
        raise createPoptorchError(f"The text of a loop or branch body has {what}: it is damaged.") from what


@lru_cache(maxsize=512)
def runnable(text: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The body as a function of its inputs."""
    module = fx.GraphModule(torch.nn.Module(), graph_from_text(text))
    return module.forward


@lru_cache(maxsize=512)
def is_random(text: str) -> bool:
    """Whether the body, or a body inside it, draws random numbers."""
    return any(traits_of(node).is_random for node in graph_from_text(text).nodes)


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
