"""The identity of a program: equal for programs that compute the same from other weights."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from poptorch.ops.host import HOST_CALL, given_name
from poptorch.program.opinfo import info_of
from poptorch.program.program import Program
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
    ports = [[p.role.value, p.name, p.index, list(p.shape), str(p.dtype)] for p in program.ports]
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
    number: dict[fx.Node, int] = {}
    for node in graph_module.graph.nodes:
        number[node] = len(number)
        info = info_of(node)
        place = info.placement
        args = node.args
        if node.target is HOST_CALL and not exact:
            args = (args[0], given_name(args[1]), *args[2:])
        yield [
            node.op,
            _target(node, graph_module),
            _plain((args, node.kwargs), number),
            _kind(node.meta.get("val")),
            [info.sweep.value, info.random, info.recomputed, place.ipu, place.stage, place.phase],
        ]


def _target(node: fx.Node, graph_module: fx.GraphModule) -> str:
    if node.op == "get_attr":
        value = getattr(graph_module, str(node.target))
        return content(value) if isinstance(value, torch.Tensor) else repr(value)
    if node.op != "call_function":
        return node.op
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.name()
    return "getitem" if target is operator.getitem else f"{getattr(target, '__module__', '')}.{target}"


def content(tensor: torch.Tensor) -> str:
    """The identity of a tensor's elements."""
    with torch.no_grad():
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype}{list(tensor.shape)}{hashlib.sha256(data).hexdigest()}"


def _plain(value: Any, number: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return f"%{number[value]}"
    if isinstance(value, (list, tuple)):
        return [_plain(item, number) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item, number) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int)):
        return value
    return f"{type(value).__name__}:{value!r}"


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}{list(value.stride())}"
    if isinstance(value, (list, tuple)):
        return [_kind(item) for item in value]
    return None
