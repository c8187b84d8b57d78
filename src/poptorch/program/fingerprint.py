"""The identity of a program: equal for programs that compute the same from other weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from poptorch.encoding import Encoder, tensor_bytes
from poptorch.ops.host import HOST_CALL, given_name
from poptorch.program.opinfo import info_of
from poptorch.program.program import Program, Role
from poptorch.program.update import UpdateProgram


def digest(value: Any) -> str:
    """SHA-256 of plain values.

    >>> digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def program_digest(program: Program, exact: bool = True) -> str:
    """The identity of a micro-batch program: operations, shapes, ports, places; neither weights nor source lines.

    Host operations have names that other ones of the same process do not have. ``exact=False`` compares only the names
    that their users gave them.
    """
    # Inputs are known by their order: the same code may call them otherwise.
    names = ["" if p.role is Role.INPUT else p.name for p in program.ports]
    ports = [
        [p.role.value, name, p.index, list(p.shape), str(p.dtype)] for p, name in zip(program.ports, names, strict=True)
    ]
    return digest(
        {
            "graph": list(_described(program.graph_module, exact)),
            "ports": ports,
            "outputs": [o.kind.value for o in program.outputs],
            "gradients": program.gradients,
            "training": program.training,
            "numerics": repr(program.numerics),
        }
    )


def update_digest(update: UpdateProgram) -> str:
    """The identity of a weight update; learning rates and other variable attributes are its inputs."""
    return digest({"graph": list(_described(update.graph_module)), "parameters": update.parameters})


def _described(graph_module: fx.GraphModule, exact: bool = True) -> Iterable[Any]:
    """One plain value for each node."""
    encoder = _Comparing(graph_module)
    for node in graph_module.graph.nodes:
        encoder.number(node)
        info = info_of(node)
        place = info.placement
        args = node.args
        if node.target is HOST_CALL and not exact:
            args = (args[0], given_name(args[1]), *args[2:])
        yield [
            node.op,
            encoder.target(node),
            encoder.encode([args, node.kwargs]),
            _kind(node.meta.get("val")),
            [info.sweep.value, info.random, info.recomputed, place.ipu, place.stage, place.phase],
        ]


class _Comparing(Encoder):
    """Writes arguments to be compared, not to be read back: sequences are all alike, objects are what they print."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__()
        self._graph_module = graph_module

    def encode(self, value: Any) -> Any:
        return super().encode(list(value) if isinstance(value, (list, tuple)) else value)

    def encode_object(self, value: Any) -> Any:
        try:
            return super().encode_object(value)
        except self.error:
            return {type(value).__name__: repr(value)}

    def target(self, node: fx.Node) -> Any:
        """What the node refers to: an operator, or the elements of a constant."""
        if node.op == "get_attr":
            value = getattr(self._graph_module, str(node.target))
            return content(value) if isinstance(value, torch.Tensor) else repr(value)
        return self.encode(node.target) if node.op == "call_function" else None


def content(tensor: torch.Tensor) -> str:
    """The identity of a tensor's elements."""
    return f"{tensor.dtype}{list(tensor.shape)}{hashlib.sha256(tensor_bytes(tensor)).hexdigest()}"


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}{list(value.stride())}"
    if isinstance(value, (list, tuple)):
        return [_kind(item) for item in value]
    return None
