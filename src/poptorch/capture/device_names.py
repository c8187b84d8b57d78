"""Names of the device in the user's code: ``"ipu"``, ``"ipu:0"``, and ``"xla"``, which older programs use.

While a model is captured they mean the model's own device. At any other time no tensor can be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from poptorch.errors import createPoptorchError
from poptorch.ops.function_modes import hand_on, runs_functions

_NAMES = ("ipu", "xla")
_HOST = torch.device("cpu")
_MOVES = frozenset({Tensor.to, Tensor.ipu})  # type: ignore[attr-defined]
"""Functions whose first argument by position may be the name of a device."""

_ALLOWED = (*_NAMES, "cpu", "meta")
_FOREIGN_MOVES = {getattr(Tensor, name): name for name in ("cuda", "xpu") if hasattr(Tensor, name)}
"""Functions that move a tensor to another kind of device."""


def is_device_name(value: Any) -> bool:
    """Whether a value names the device of a captured model.

    >>> is_device_name("ipu:0"), is_device_name(torch.device("xla")), is_device_name("cpu"), is_device_name(3)
    (True, True, False, False)
    """
    if isinstance(value, torch.device):
        return value.type in _NAMES
    return isinstance(value, str) and value.partition(":")[0] in _NAMES


class DeviceNames(TorchFunctionMode):
    """Lets calls name the device."""

    def __init__(self, place: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> None:
        """``place`` returns a tensor that is moved as it is on the device."""
        super().__init__()
        self._place = place
        self._making = False

    def is_making(self) -> bool:
        """Whether a call that names the device is under way."""
        return self._making

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if runs_functions(func):
            return hand_on(self, func, args, kwargs)
        if not _names_device(func, args, kwargs):
            foreign = _foreign_device(func, args, kwargs)
            if foreign is not None:
                raise createPoptorchError(
                    f"forward() names the device {foreign!r}. A wrapped model runs on its IPUs, and so do the tensors "
                    "that it makes: leave the device out, or take that of a tensor (device=x.device)."
                )
            return func(*args, **kwargs)
        if func is Tensor.ipu:  # type: ignore[attr-defined]
            func, args, kwargs = Tensor.to, (args[0], _HOST), {}
        # An equation of einsum may look like a name: texts by position count in the functions that move tensors only.
        hosted = tuple(_hosted(a, texts=func in _MOVES) for a in args)
        named = {k: _hosted(v) if k == "device" else v for k, v in kwargs.items()}
        before, self._making = self._making, True
        try:
            if func in _MOVES:
                hosted = (self._place(hosted[0]), *hosted[1:])
            return func(*hosted, **named)
        finally:
            self._making = before


def _names_device(func: Any, args: Any, kwargs: Any) -> bool:
    if func in _MOVES:
        return func is not Tensor.to or is_device_name(kwargs.get("device")) or any(map(is_device_name, args[1:]))
    if any(isinstance(a, torch.device) and a.type in _NAMES for a in args):
        return True
    return "device" in kwargs and is_device_name(kwargs["device"])


def _foreign_device(func: Any, args: Any, kwargs: Any) -> str | None:
    """The device in a call that is neither the model's nor the host."""
    if func in _FOREIGN_MOVES:
        return _FOREIGN_MOVES[func]
    given = (*args[1:2], kwargs.get("device")) if func is Tensor.to else (kwargs.get("device"),)
    for value in given:
        name = value.type if isinstance(value, torch.device) else value
        if isinstance(name, str) and name.partition(":")[0] not in _ALLOWED:
            return str(value)
        if isinstance(name, int) and not isinstance(name, bool):  # torch reads a number as that of an accelerator
            return f"cuda:{name}"
    return None


def _hosted(value: Any, texts: bool = True) -> Any:
    named = is_device_name(value) if texts else isinstance(value, torch.device) and value.type in _NAMES
    return _HOST if named else value


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise createPoptorchError(
        "No tensor can be made on, or moved to, the IPU here: tensors move when a wrapped model is called. Leave them "
        "on the CPU, and pass them to the result of poptorch.trainingModel or poptorch.inferenceModel. "
        'Inside forward(), the device "ipu" means the device of the model.'
    )


_kernels = torch.library.Library("aten", "IMPL")
"""Torch knows the device and has no kernel for it. These two make every tensor."""

_kernels.impl("empty.memory_format", _refuse, "IPU")
_kernels.impl("empty_strided", _refuse, "IPU")
