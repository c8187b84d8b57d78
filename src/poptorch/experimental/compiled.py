"""The program of a function or block on its device, with the state that lives there between calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from poptorch._logging import logger
from poptorch.capture.arguments import BoundCall
from poptorch.capture.front_end import FrontEnd
from poptorch.compiler.request import resolved_copy
from poptorch.enums import Compiler
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
        for index in self._written:
            inputs[index] = inputs[index].clone()
        with torch.inference_mode(False):
            return self.session.run(BoundCall(call.names, tuple(inputs), {}))

    @in_turn
    def state(self) -> dict[str, torch.Tensor]:
        """What the device has, by name; copies."""
        return {name: value.clone() for name, value in self.session.engine.download().items()}

    @in_turn
    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Overwrite what the device has. Names without a value keep theirs."""
        self.session.engine.upload({**self.session.engine.download(), **state})

    @in_turn
    def release(self) -> None:
        """Free the device."""
        self.session.release()
