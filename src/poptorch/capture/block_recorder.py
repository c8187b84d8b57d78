"""Recording what runs between two moments, instead of a function.

Torch's tracer calls a function. Here its parts are put together by hand, so that they can be open while a block of the
user's code runs. The block cannot run a second time, so it runs on real tensors: copies of inputs and state.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    disable_proxy_modes_tracing,
    track_tensor_tree,
)

from poptorch.ambient import CaptureContext
from poptorch.capture.casting import MixedTypes
from poptorch.capture.device_names import DeviceNames
from poptorch.capture.state import collect_state, stand_ins_for
from poptorch.capture.structure import flatten
from poptorch.capture.tracer import Recording, Request, StandIns, capturable_layers, environment, module_scopes
from poptorch.ops.recorded import is_recorded, node_of
from poptorch.program.tracing import tracing


class BlockRecorder:
    """Records from :meth:`open` to :meth:`close`. Tensors are on the device if the block moves or makes them there."""

    def __init__(self, request: Request, owned: Sequence[torch.Tensor]) -> None:
        """``owned`` are the user's own tensors that the inputs of the request stand for."""
        self._request = request
        self._owned = owned
        self._state = collect_state(request.model)
        self._inputs: dict[int, torch.Tensor] = {}
        self._context = CaptureContext(settings=request.settings, training=request.training)
        self._stack = ExitStack()
        self._tracer = _open_tracer()

    def open(self) -> None:
        """Start to record."""
        request = self._request
        tensors = stand_ins_for(self._state, _copy)
        inputs = [
            _copy(tensor).requires_grad_(own.requires_grad)
            for own, tensor in zip(self._owned, request.inputs, strict=True)
        ]
        with ExitStack() as stack:
            stack.enter_context(tracing())
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(ProxyTorchDispatchMode(self._tracer, "real"))
            for index, tensor in enumerate([*tensors, *inputs]):
                proxy = self._tracer.create_proxy("placeholder", f"arg_{index}", (), {})
                with disable_proxy_modes_tracing():
                    track_tensor_tree(tensor, proxy, constant=None, tracer=self._tracer)
            self._inputs = {id(own): stand_in for own, stand_in in zip(self._owned, inputs, strict=True)}
            names = DeviceNames(self._place)
            rules, stand_ins = MixedTypes.of(request.settings, promotes=True), StandIns(self._state, tensors)
            stack.enter_context(environment(request, rules, self._context, stand_ins, names))
            stack.enter_context(module_scopes(request))
            stack.enter_context(capturable_layers(request))
            self._stack = stack.pop_all()

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device: an input, a tensor that is there already, or a constant."""
        if is_recorded(tensor):
            return tensor
        return self._inputs[id(tensor)] if id(tensor) in self._inputs else tensor.clone()

    def gradients(self, wanted: Sequence[bool]) -> dict[int, torch.Tensor]:
        """What the block has added to the ``grad`` of its inputs, by position; to be called before :meth:`finish`."""
        inputs = [self._inputs[id(own)] for own in self._owned]
        first = {id(stand_in): index for index, stand_in in reversed([*enumerate(inputs)])}
        return {
            index: stand_in.grad
            for index, stand_in in enumerate(inputs)
            if wanted[index] and first[id(stand_in)] == index and stand_in.grad is not None
        }

    def finish(self, results: Any) -> Recording:
        """The recording, with these results; to be called before :meth:`close`."""
        tensors, structure = flatten(results)
        nodes = [self._node_of(t if is_recorded(t) else t.detach().clone()) for t in tensors]
        self._tracer.graph.output(nodes)
        return Recording(
            fx.GraphModule(self._tracer.root, self._tracer.graph),
            self._state,
            list(self._request.inputs),
            structure,
            len(tensors),
            [],
            None,
            self._context,
        )

    def _node_of(self, tensor: torch.Tensor) -> Any:
        return node_of(tensor, self._tracer) or self._tracer.create_arg(tensor)

    def close(self, *error: Any) -> None:
        """Everything is as before :meth:`open`; ``error`` is what an exit handler gets."""
        self._stack.__exit__(*(error or (None, None, None)))


def _open_tracer() -> PythonKeyTracer:
    """What :meth:`torch.fx.Tracer.trace` prepares before it calls its function."""
    tracer = PythonKeyTracer()
    tracer.root = nn.Module()
    tracer.graph = fx.Graph(tracer_cls=PythonKeyTracer)
    tracer.tensor_attrs = {}
    return tracer


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype is torch.float64 else tensor).clone()
