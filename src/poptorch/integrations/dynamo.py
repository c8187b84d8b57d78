"""``torch.compile(model, backend="poptorch")``: plain modules through the code generator of this host.

Found by torch through the entry point ``torch_dynamo_backends``; nothing of it is loaded before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from poptorch._logging import logger
from poptorch.host.interpret.code import generate_flat


def compile_graph(graph_module: fx.GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
    """The backend: forward and backward as straight-line Python, each value dropped after its last use.

    >>> compiled = torch.compile(torch.nn.Linear(2, 1), backend=compile_graph)
    >>> compiled(torch.ones(3, 2)).shape
    torch.Size([3, 1])
    """
    if settings.get("options"):
        raise ValueError(f"The backend 'poptorch' has no options: got {settings['options']}.")
    backend: Callable[..., Any] = aot_autograd(fw_compiler=_host_code, bw_compiler=_host_code)
    compiled: Callable[..., Any] = backend(graph_module, example_inputs)
    return compiled


def _host_code(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    if why := _unsupported(graph_module):
        logger.info("torch.compile: a graph of %d operations runs as it is: %s", len(graph_module.graph.nodes), why)
        return _boxed(graph_module.forward)
    return _boxed(partial(generate_flat(graph_module, "graph").run, None))  # draws from torch's own random numbers


def _boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one list, which it empties: so nobody keeps values that the graph needs no more."""

    def call(values: list[Any]) -> Any:
        taken = list(values)
        values.clear()
        return run(*taken)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _unsupported(graph_module: fx.GraphModule) -> str | None:
    """Why generated code would not do, or ``None``."""
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return "its sizes may change; use torch.compile(..., dynamic=False)"
        if isinstance(value, torch.Tensor):
            if any(isinstance(size, torch.SymInt) for size in value.shape):
                return "its sizes may change; use torch.compile(..., dynamic=False)"
            if value.device.type != "cpu":
                return f"it is on the device {value.device}"
            if value.dtype is torch.float16:
                return "it has values of half precision, which IPUs round in another way"
    return None
