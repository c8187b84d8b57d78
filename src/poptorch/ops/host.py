"""``CPU``: call out of the compiled program into Python, and come back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from poptorch import ambient
from poptorch.errors import createPoptorchError
from poptorch.ops._library import define, separate

_EXTRA = "ops.host"


@dataclass
class _HostFunction:
    call: Callable[..., Any]
    # One call at a time: replicas and micro-batches run on several threads, user code need not be ready for
    # that.
    turn: threading.RLock = field(default_factory=threading.RLock)


_functions: dict[str, _HostFunction] = {}
_functions_lock = threading.Lock()


class _Running(threading.local):
    active = False


_running = _Running()


def _register(identifier: str, call: Callable[..., Any]) -> str:
    """Remember ``call`` for the life of the process, as ``identifier`` unless another function has that."""
    with _functions_lock:
        key, attempt = identifier, 1
        while key in _functions and _functions[key].call is not call:
            attempt += 1
            key = f"{identifier}#{attempt}"
        _functions.setdefault(key, _HostFunction(call))
        return key


def given_name(key: Any) -> str:
    """The ID that the user chose, whatever it became because other functions have the same.

    >>> given_name("double"), given_name("double#2")
    ('double', 'double')
    """
    name, separator, number = str(key).rpartition("#")
    return name if separator and number.isdigit() else str(key)


def _call_host(inputs: Sequence[torch.Tensor], key: str, signature: str) -> list[torch.Tensor]:
    function = _functions.get(key)
    if function is None:
        raise createPoptorchError(
            f"The program calls the host operation {key!r}, which this process does not know. Create it "
            f"first: poptorch.CPU(function, ID={given_name(key)!r})."
        )
    values = [tensor.detach().clone() for tensor in inputs]
    with function.turn, _plain_pytorch():
        results = _results(function.call(*values))
    declared = json.loads(signature)
    if _signature_of(results) != declared:
        raise createPoptorchError(
            f"The host operation {key!r} returned {_signature_of(results)}, but {declared} when the model "
            "was compiled. Shapes and types are fixed at compilation."
        )
    return separate(results, inputs)


def _host_shapes(inputs: Sequence[torch.Tensor], key: str, signature: str) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in json.loads(signature)]


HOST_CALL = define("host_call(Tensor[] inputs, str key, str signature) -> Tensor[]", _call_host, _host_shapes)
torch.fx.node.has_side_effect(HOST_CALL)  # user code may do anything: never optimised away


@contextmanager
def _plain_pytorch() -> Iterator[None]:
    """Run user code as if no capture and no other host operation were under way on this thread."""
    if _running.active:
        raise createPoptorchError("CPU ops must not overlap: a poptorch.CPU operation called another one.")
    _running.active = True
    try:
        with ExitStack() as stack:
            stack.enter_context(_disable_current_modes())
            stack.enter_context(torch._C.DisableTorchFunction())
            stack.enter_context(torch.no_grad())
            stack.enter_context(ambient.capturing(None))
            yield
    finally:
        _running.active = False


class CPU:
    """Run a function or module on the host in the middle of a compiled model.

    The function is called once while the model is captured, to learn the shapes of its results, and then once
    per execution with the actual values. What it raises reaches the caller unchanged. No gradient passes
    through it.

    >>> double = CPU(lambda x: 2 * x, "double")
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        if not callable(layer_to_call):
            raise createPoptorchError(f"poptorch.CPU: {type(layer_to_call).__name__} cannot be called.")
        if not isinstance(ID, str):
            raise createPoptorchError(f"poptorch.CPU: ID must be a string, not {type(ID).__name__}.")
        if isinstance(layer_to_call, torch.nn.Module):
            layer_to_call.requires_grad_(False)
        self._layer_to_call = layer_to_call
        self._ID = ID
        self._key = _register(ID, layer_to_call)
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        self.in_shapes: list[torch.Size] = []
        self.out_shapes: list[torch.Size] = []

    def execute(self) -> None:
        """Run the function on ``inputs`` and store what it returns in ``outputs``."""
        with _plain_pytorch():
            self.outputs = [tensor.detach() for tensor in _results(self._layer_to_call(*self.inputs))]

    def registerPersistentData(self) -> None:
        """Make the function known to compiled programs under its ID."""
        self._key = _register(self._ID, self._layer_to_call)

    def __call__(self, *input: torch.Tensor, **kwargs: Any) -> Any:
        """Call the function; inside a model's ``forward`` this becomes an operation of the program."""
        context = ambient.current()
        if context is None:
            if _running.active:
                raise createPoptorchError("CPU ops must not overlap: a poptorch.CPU operation called another one.")
            return self._layer_to_call(*input, **kwargs)
        for value in input:
            if not isinstance(value, torch.Tensor):
                raise createPoptorchError(
                    f"poptorch.CPU {self._ID!r}: an argument of type {type(value).__name__} is not "
                    "supported; host operations take tensors."
                )
        first = context.extras.setdefault(_EXTRA, {}).setdefault(self._ID, self)
        first.registerPersistentData()  # copies, and what comes from a file, were never made known
        result = first._learn_shapes(input)
        results = HOST_CALL([tensor.detach() for tensor in input], first._key, json.dumps(_signature_of(first.outputs)))
        return results[0] if isinstance(result, torch.Tensor) else list(results)

    def _learn_shapes(self, inputs: Sequence[torch.Tensor]) -> Any:
        with _plain_pytorch():
            self.inputs = [_real(tensor).clone() for tensor in inputs]
            result = self._layer_to_call(*self.inputs)
            self.outputs = [_real(tensor) for tensor in _results(result)]
        self.in_shapes = [tensor.shape for tensor in self.inputs]
        self.out_shapes = [tensor.shape for tensor in self.outputs]
        return result


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or zeros for a stand-in without values: also the weights of a layer are such while it is captured."""
    if isinstance(tensor, FakeTensor):
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return tensor.detach()


def _results(value: Any) -> list[torch.Tensor]:
    results = list(value) if isinstance(value, (list, tuple)) else [value]
    for result in results:
        if not isinstance(result, torch.Tensor):
            raise createPoptorchError(
                f"A poptorch.CPU operation must return a tensor, or a list or tuple of tensors, not "
                f"{type(result).__name__}."
            )
        if not isinstance(result, FakeTensor) and (result.device.type != "cpu" or result.layout != torch.strided):
            what = f"on the {result.device.type} device" if result.device.type != "cpu" else f"with {result.layout}"
            why = ", which has no values" if result.is_meta else ""
            raise createPoptorchError(
                f"A poptorch.CPU operation returned a tensor {what}{why}. Return dense tensors of the CPU."
            )
    return results


def _signature_of(tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [[list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for tensor in tensors]
