"""The program of a function or block on its device, with the state that lives there between calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from poptorch._logging import logger
from poptorch.capture.arguments import BoundCall, positions_of_same
from poptorch.capture.front_end import FrontEnd
from poptorch.capture.tracer import Recording, Request
from poptorch.compiler.request import resolved_copy
from poptorch.enums import Compiler, OutputMode
from poptorch.errors import createPoptorchError
from poptorch.executor.host_weights import HostWeights
from poptorch.executor.session import Session, Wrapped, check_options
from poptorch.executor.stored import StoredExecutable
from poptorch.executor.turns import Turns, in_turn
from poptorch.options import Options


def own_options(options: Options | None) -> Options:
    """A frozen copy, with the output mode decided; the caller's options stay as they are."""
    if options is not None and not isinstance(options, Options):
        raise createPoptorchError(f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)")
    copied = resolved_copy(Options() if options is None else options, training=False)
    copied._freeze()
    return copied


def checked_compiler(compiler: Any) -> Compiler:
    """The compiler that the caller names; both do the same here."""
    if not isinstance(compiler, Compiler):
        raise createPoptorchError(
            f"compiler must be poptorch.Compiler.MLIR or poptorch.Compiler.PopART, not {compiler!r}"
        )
    return compiler


def check_model(model: Any) -> None:
    """The module whose state is on the device must be one."""
    if model is not None and not isinstance(model, nn.Module):
        raise ValueError("model must inherit from torch.nn.Module")


def check_optimizer(dict_optimizer: Any) -> None:
    """Updates are part of what is captured, so there is nothing for a description of an optimizer to do."""
    if dict_optimizer:
        raise createPoptorchError(
            "dict_optimizer must be empty: the captured code contains its update. Call backward() and the step() of a "
            "torch.optim optimizer in it."
        )


def check_loadable(compiler: Compiler) -> None:
    """Executables in files are those of one compiler."""
    if compiler is not Compiler.PopART:
        raise createPoptorchError(
            "can't deserialize MLIR executables: only poptorch.Compiler.PopART reads executables from files"
        )


def front_end_of(record: Callable[[Request], Recording], compiler: Compiler) -> FrontEnd:
    """How functions and blocks are captured."""
    return FrontEnd(record, compiler, tells_host_results=True, reads_what_it_wrote=True, takes_empty=True)


@dataclass(frozen=True)
class DeviceState:
    """What a program leaves on the device for the next one."""

    values: dict[str, torch.Tensor]
    """By name."""

    random: list[int] | None
    """Seed and position of the random numbers."""


class CompiledCode:
    """A module of ours on its device."""

    def __init__(
        self,
        module: nn.Module,
        call: BoundCall,
        options: Options,
        front_end: FrontEnd,
        filename: str | None = None,
    ) -> None:
        self._turns = Turns()
        weights = HostWeights(module, module, options, self, self._turns, training=False)
        wrapped = Wrapped(module, module, module, None, options, weights, None, front_end=front_end)
        stored = None if filename is None else StoredExecutable(filename)
        if stored is not None:
            stored.check_version()
            stored.check_custom_ops()
        check_options(options)
        with torch.inference_mode(False):
            self.session = Session.compile(wrapped, call, stored)
        self._written = self.session.executable.device.interface.written_inputs

    def copyWeightsToHost(self) -> None:
        """The host's tensors are those of the start: state stays on the device."""
        logger.debug("The state of captured code stays on the device")

    @in_turn
    def run(self, call: BoundCall) -> Any:
        """The results of one call. The caller's tensors are not changed, whatever the code does to its inputs."""
        inputs = list(call.positional)
        if self._written:
            same = positions_of_same(inputs)
            copies = {same[index]: inputs[index].clone() for index in self._written}
            inputs = [copies.get(position, tensor) for position, tensor in zip(same, inputs, strict=True)]
        with torch.inference_mode(False):
            return self.session.run(BoundCall(call.names, tuple(inputs), {}))

    @in_turn
    def state(self) -> DeviceState:
        """What the device has; copies."""
        values = {name: value.clone() for name, value in self.session.engine.download().items()}
        return DeviceState(values, self.session.rng_state)

    @in_turn
    def carry_on(self, state: DeviceState) -> None:
        """Go on where another program has ended. Names without a value keep theirs."""
        self.session.engine.upload({**self.session.engine.download(), **state.values})
        if state.random is not None:
            self.session.rng_state = state.random

    @in_turn
    def release(self) -> None:
        """Free the device."""
        self.session.release()


def check_gradients_fit(code: CompiledCode) -> None:
    """Refuse to compute gradients of arguments that are not put together as the arguments are cut."""
    loop = code.session.executable.device.loop
    several = loop.device_iterations * loop.replicas > 1
    if several and (loop.output_mode is not OutputMode.All or loop.input_group_size > 1):
        code.release()
        raise createPoptorchError(
            "The function computes gradients of an argument with requires_grad=True. Its grad gets the rows of all "
            "micro-batches of a call, so the output mode must be All, and replicas must have inputs of their own."
        )
