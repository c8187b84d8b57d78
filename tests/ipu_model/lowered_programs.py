"""Programs to cost: models lowered for the device, and single functions as graphs, without values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import poptorch
from poptorch.capture.arguments import Signature
from poptorch.compiler.device_program import DeviceProgram
from poptorch.compiler.lowering import lower_for_device
from poptorch.compiler.request import CompileRequest, update_settings
from poptorch.optim.spec import describe


def lowered(model: nn.Module, *inputs: Any, optimizer: Any = None, options: Any = None) -> DeviceProgram:
    """A model for inference, or for training with an optimizer."""
    call = Signature(model.forward).bind(inputs, {})
    options = poptorch.Options() if options is None else options
    spec = None if optimizer is None else describe(optimizer, update_settings(options))
    return lower_for_device(CompileRequest(model, call, options, optimizer is not None, spec))


def operations(device: DeviceProgram) -> Iterator[fx.Node]:
    """What a micro-batch computes, then what the update does."""
    yield from device.program.operations()
    if device.update is not None:
        yield from calls(device.update.graph_module.graph)


def calls(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that compute something."""
    return [node for node in graph.nodes if node.op == "call_function"]


def traced(function: Callable[..., Any], *inputs: torch.Tensor, grad: bool = False) -> list[fx.Node]:
    """The operations of a function of tensors, with those of its gradient."""

    def step(*tensors: torch.Tensor) -> Any:
        floating = [t.requires_grad_() for t in tensors if grad and t.is_floating_point()]
        outputs = [t for t in pytree.tree_leaves(function(*tensors)) if isinstance(t, torch.Tensor)]
        roots = [t for t in outputs if t.requires_grad]
        if not floating or not roots:
            return outputs
        return outputs, torch.autograd.grad(roots, floating, [torch.ones_like(t) for t in roots], allow_unused=True)

    module = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*(t.clone() for t in inputs))
    return calls(module.graph)


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """A tensor without values."""
    return torch.empty(shape, dtype=dtype, device="meta")
