"""A function as a module: its tensors are inputs, and the state of the named module is its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.overrides import TorchFunctionMode

from poptorch.capture.state import StateEntry, collect_state
from poptorch.capture.structure import ConstantLeaf, Structure, flatten, walk
from poptorch.errors import createPoptorchError
from poptorch.experimental.arguments import Arguments
from poptorch.experimental.optimizers import NewState, Optimizers, StateSlot

_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


class TorchErrors(TorchFunctionMode):
    """What torch itself refuses, such as shapes that do not fit, is an error of the compilation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except _NEEDS_VALUES:
            raise  # capture knows what to do
        except (RuntimeError, IndexError) as error:
            raise createPoptorchError(str(error)) from error


@dataclass
class Captured:
    """What the latest run of the function showed."""

    structure: Structure
    """What the function returns."""

    num_results: int
    new_state: list[NewState]
    """State of optimizers that did not exist before; its values follow the results."""


class FunctionModule(nn.Module):
    """Calls the function with the arguments of one call, and other tensors in them."""

    captured: Captured | None = None

    def __init__(
        self, function: Callable[..., Any], model: nn.Module | None, slots: Sequence[tuple[StateSlot, torch.Tensor]]
    ) -> None:
        super().__init__()
        # Not as an attribute: a module that is called, but not named, is a constant.
        self._call: tuple[Callable[..., Any], ...] = (function,)
        self._arguments: Arguments | None = None
        self.model = model
        self.optimizer_state = nn.Module()
        for index, (_, value) in enumerate(slots):
            self.optimizer_state.register_buffer(str(index), value)
        self._slots = [slot for slot, _ in slots]
        self._entries = [] if model is None else collect_state(model)

    def take(self, arguments: Arguments) -> None:
        """Be captured with these arguments."""
        self._arguments = arguments

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Run the function under capture; returns its results, then the new state of optimizers."""
        assert self._arguments is not None
        inputs = [
            stand_in.requires_grad_(given.requires_grad)
            for stand_in, given in zip(tensors, self._arguments.tensors, strict=True)
        ]
        optimizers = Optimizers([(e.tensor, stand_in_of(e)) for e in self._entries])
        values = [buffer for buffer in self.optimizer_state.buffers()]
        with TorchErrors(), optimizers.on_device(list(zip(self._slots, values, strict=True))):
            args, kwargs = self._arguments.rebuild(inputs)
            output = self._call[0](*args, **kwargs)
            results, structure = flatten(output)
            check_results(structure)
            new_state = optimizers.finish()
        self.captured = Captured(structure, len(results), new_state)
        return [*results, *(state.value for state in new_state)]


def stand_in_of(entry: StateEntry) -> torch.Tensor:
    """What is in the module in place of a tensor while it is captured."""
    module, attribute, _ = entry.slots[0]
    tensor: torch.Tensor = getattr(module, attribute)
    return tensor


def check_results(structure: Structure) -> None:
    """Refuse results that are no tensors: a program computes nothing else."""
    for path, leaf in walk(structure, "result"):
        if isinstance(leaf, ConstantLeaf) and leaf.value is not None:
            raise createPoptorchError(
                f"Only tensors may be returned from code that runs on the IPU, in tuples, lists and the like, but "
                f"{path} is {leaf.value!r}, of {type(leaf.value)}. Return it as a tensor, or compute it outside."
            )
