"""A function as a module: its tensors are inputs, and the state of the named module is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.overrides import TorchFunctionMode

from poptorch.capture.objects import contents_kept, reachable
from poptorch.capture.state import StateEntry, collect_state
from poptorch.capture.structure import ConstantLeaf, Structure, flatten, walk
from poptorch.capture.tracer import Recording, Request, record
from poptorch.errors import createPoptorchError
from poptorch.experimental.arguments import Arguments
from poptorch.experimental.gradients import GradientWatch, LeafGradients
from poptorch.experimental.optimizers import FrozenNumbers, NewState, Optimizers, StateSlot
from poptorch.frames import warn_user
from poptorch.ops.recorded import is_recorded

OPTIMIZER_STATE = "optimizer state"
"""The name of the module that holds the state of optimizers."""

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

    numbers: FrozenNumbers
    """Settings of the optimizers."""

    gradients: LeafGradients
    """What the function did to the ``grad`` of its arguments; the values follow the new state."""


class StateModule(nn.Module):
    """What captured code has on the device between calls: the state of the named module, and that of its optimizers.

    Names are those of the named module itself.
    """

    def __init__(self, model: nn.Module | None, slots: Sequence[tuple[StateSlot, torch.Tensor]]) -> None:
        super().__init__()
        self._entries = [] if model is None else collect_state(model)
        self._slots = [slot for slot, _ in slots]
        self._named = [] if model is None else [("", model)]
        if slots:
            holder = nn.Module()
            for index, (_, value) in enumerate(slots):
                holder.register_buffer(str(index), value)
            self._named.append((OPTIMIZER_STATE, holder))

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """The modules with state; this one has none of its own."""
        for name, module in self._named:
            yield from module.named_modules(memo, prefix + name, remove_duplicate)

    def optimizers(self) -> Optimizers:
        """The optimizers of the module; to be called under capture."""
        return Optimizers([(entry.tensor, _stand_in_of(entry)) for entry in self._entries])

    def state_on_device(self) -> list[tuple[StateSlot, torch.Tensor]]:
        """The state of the optimizers; to be called under capture."""
        holders = [module for name, module in self._named if name == OPTIMIZER_STATE]
        return list(zip(self._slots, holders[0].buffers() if holders else (), strict=True))


def record_function(request: Request) -> Recording:
    """Autograd watches the function, which may contain its own backward pass; mixed types are promoted as by torch."""
    return record(request, grad=True, promotes=True)


class FunctionModule(StateModule):
    """Calls the function with the arguments of one call, and other tensors in them."""

    captured: Captured | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        model: nn.Module | None,
        slots: Sequence[tuple[StateSlot, torch.Tensor]],
        with_gradients: bool = False,
    ) -> None:
        """``with_gradients`` says whether the inputs end with what leaf arguments have in their ``grad``."""
        super().__init__(model, slots)
        # Not as an attribute: a module that is called, but not named, is a constant.
        self._call = (function,)
        self._arguments = arguments
        self._empty_containers = arguments.emptied()
        self.gradient_inputs = arguments.leaves() if with_gradients else ()

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Run the function under capture; returns its results, new state of optimizers, and leaf gradients."""
        count = len(self._arguments.tensors)
        inputs = [
            stand_in.requires_grad_(given.requires_grad)
            for stand_in, given in zip(tensors[:count], self._arguments.tensors, strict=True)
        ]
        inputs = [inputs[position] for position in self._arguments.stand_for()]
        held = {id(entry.tensor): _stand_in_of(entry) for entry in self._entries}
        for index in self._arguments.state:
            inputs[index] = held[id(self._arguments.tensors[index])]
        leaves = self._arguments.leaves()
        gradients = GradientWatch(leaves, [inputs[i] for i in leaves], tensors[count:])
        optimizers = self.optimizers()
        self._empty_containers()  # of what an earlier attempt has filled in
        with ExitStack() as stack:
            for constant in self._arguments.constants():
                stack.enter_context(contents_kept([constant]))
            stack.enter_context(TorchErrors())
            stack.enter_context(optimizers.on_device(self.state_on_device()))
            args, kwargs = self._arguments.rebuild(inputs)
            results, structure = flatten(self._call[0](*args, **kwargs))
            check_kept(self._arguments.constants(), (args, kwargs))
            check_results(structure)
            warn_of_host_tensors(results)
            new_state = optimizers.finish()
        changed, values = gradients.changes()
        self.captured = Captured(structure, len(results), new_state, optimizers.numbers, changed)
        return [*results, *(state.value for state in new_state), *values]


def _stand_in_of(entry: StateEntry) -> torch.Tensor:
    """What is in the module in place of a tensor while it is captured."""
    module, attribute, _ = entry.slots[0]
    tensor: torch.Tensor = getattr(module, attribute)
    return tensor


def check_kept(constants: list[Any], arguments: Any) -> None:
    """Refuse an optimizer that the function keeps in a copy of a container: it would start anew with each program."""
    known = {id(item) for item in reachable(constants)}
    for item in reachable([arguments]):
        if isinstance(item, (Optimizer, LRScheduler)) and id(item) not in known:
            raise createPoptorchError(
                f"The function keeps a {type(item).__name__} in an argument that also holds tensors. Such an argument "
                "is a copy in the function, and what is put into it does not last. Keep it in a container or object "
                "that holds no tensors, or make it before the function is called."
            )


def check_results(structure: Structure) -> None:
    """Refuse results that are no tensors: a program computes nothing else."""
    for path, leaf in walk(structure, "result"):
        if isinstance(leaf, ConstantLeaf) and leaf.value is not None:
            raise createPoptorchError(
                f"Only tensors may be returned from code that runs on the IPU, in tuples, lists and the like, but "
                f"{path} is {leaf.value!r}, of {type(leaf.value)}. Return it as a tensor, or compute it outside."
            )


def warn_of_host_tensors(results: Sequence[torch.Tensor]) -> None:
    """Tell of results that were never on the device: they are constants."""
    for tensor in results:
        if not is_recorded(tensor):
            warn_user(f"Output expected to be on the IPU but is on {tensor.device.type}")
