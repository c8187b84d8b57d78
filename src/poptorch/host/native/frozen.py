"""Native code for inference, in which everything that depends on weights alone is computed once per weight upload.

Batch norms are folded into the layers before them, weights are packed in the layout of the library that multiplies
them, and casts, transposes and sums of weights are done ahead of the calls. The results are kept with the weights
(:class:`~poptorch.runtime.values.weights.Weights`) until these change; the next call makes them anew.

Memory: the weights themselves stay where they are, because they are what the host reads back. Beside them there is
one packed copy of each weight of a linear layer or convolution, and whatever else was computed; nothing of what only
led to it. Embeddings, norms and biases are used in place. What the program writes to, as a batch norm in training mode
does to its statistics, is never frozen.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from poptorch.executable.host_code import Code
from poptorch.host.native.effects import is_effectful, with_tokens
from poptorch.host.native.freezing import freeze
from poptorch.host.native.inductor import Kernel, Target, compile_graph, contiguous, decompose, fake_mode, replay
from poptorch.host.native.preparation import Preparation
from poptorch.host.native.random_keys import fake_key, with_keys
from poptorch.program.opinfo import info_of
from poptorch.program.program import Program, Role
from poptorch.runtime.values.weights import Weights

_STATE = (Role.PARAMETER, Role.BUFFER, Role.CONSTANT)


def generate_frozen(program: Program, target: Target) -> Code:
    """``run(parameters, buffers, constants, inputs, loss_scale, random) -> outputs`` for an inference program."""
    assert not program.training
    graph_module = with_keys(program.graph_module)
    ordered = is_effectful(graph_module.graph)
    function = replay(with_tokens(graph_module) if ordered else graph_module)
    mode = fake_mode()
    with mode:
        fakes = [torch.empty(port.shape, dtype=port.dtype) for port in program.ports]
        fakes.append(fake_key(program))
        graph_module = decompose(lambda *flat: tuple(map(contiguous, function(*flat))), fakes)
    written = {(p.role, p.index) for p in program.mutated()}
    frozen = [p.role in _STATE and (p.role, p.index) not in written for p in program.ports]
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    weights = {n: f for n, f, stays in zip(placeholders, fakes, [*frozen, False], strict=True) if stays}
    preparation = freeze(graph_module, mode, weights)
    moving = [f for f, stays in zip(fakes, [*frozen, False], strict=True) if not stays]
    kernel = compile_graph(graph_module, [*moving, *preparation.descriptions], target, is_inference=True).run
    code = _Code(program, frozen, preparation, kernel, ordered)
    return Code(code.run, f"# native code for {target.threads} threads with frozen weights\n{program}")


class _Code:
    """Compiled code with the preparation that goes with it."""

    def __init__(
        self, program: Program, frozen: Sequence[bool], preparation: Preparation, kernel: Kernel, ordered: bool
    ) -> None:
        ports = list(zip(program.ports, frozen, strict=True))
        self._weights = [(p.role, p.index) for p, stays in ports if stays]
        self._written = [(p.role, p.index) for p, stays in ports if not stays and p.role in _STATE]
        self._preparation = preparation
        self._kernel = kernel
        self._ordered = ordered
        self._random = any(info_of(node).random is not None for node in program.operations())
        self._no_key = torch.tensor(0)
        self._lock = threading.Lock()

    def run(self, parameters: Any, buffers: Any, constants: Any, inputs: Any, loss_scale: Any, random: Any) -> Any:
        """One micro-batch."""
        if isinstance(parameters, Weights):
            prepared = parameters.derived.get(self)
            if prepared is None:
                with self._lock:  # replicas that share weights prepare them once
                    prepared = parameters.derived.get(self)
                    if prepared is None:
                        prepared = parameters.derived[self] = self._prepare(parameters, buffers, constants)
        else:
            prepared = self._prepare(parameters, buffers, constants)
        key = random.as_tensor() if self._random else self._no_key
        flat = [*inputs, *loss_scale, key, *prepared]
        if self._written:
            state = {Role.PARAMETER: parameters, Role.BUFFER: buffers, Role.CONSTANT: constants}
            flat[:0] = [state[role][index] for role, index in self._written]
        outputs = self._kernel(flat)
        return outputs[:-1] if self._ordered else outputs  # the last token is no result

    def _prepare(self, parameters: Any, buffers: Any, constants: Any) -> list[torch.Tensor]:
        state = {Role.PARAMETER: parameters, Role.BUFFER: buffers, Role.CONSTANT: constants}
        return self._preparation.run(state[role][index] for role, index in self._weights)
