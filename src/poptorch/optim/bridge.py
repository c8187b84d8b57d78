"""Where optimizers and executors meet: who tells whom that state has moved.

A ``poptorch.optim`` optimizer keeps a copy of its device state on the host and two flags.
``host_state_is_dirty``: the device has newer state. ``ipu_state_is_dirty``: the host has newer state, to be
uploaded. Never are both set. The executor is the optimizer's :class:`StateBridge`; the optimizer holds it
weakly. Every function here does nothing for native ``torch.optim`` optimizers, whose state is never
transferred, so that the executor need not ask.

What an executor calls, and when (*upload* stands for the sequence in the second entry):

``trainingModel(...)``
    ``connect(optimizer, self)``.
*upload*
    ``pending = pending_state(optimizer)``; if that is not ``None``: copy the weights to the host if those
    there are stale, ``write_state(device_state, device_params, pending)``, write the weights,
    ``uploaded(optimizer)``.
compile
    Offline target: nothing. Otherwise, with the device attached and the initial state on it,
    ``after_compile(optimizer)``, then as for *attach*.
attach, re-attach
    ``expect_upload(optimizer)``; write weights and hyper-parameters; *upload*.
model call
    *upload*; ``before_run(optimizer)``; run.
``setOptimizer(new)``
    ``describe`` and, once compiled, ``check_update``: a refused optimizer leaves everything as it was. Then
    ``replace(old, new, self)`` if it is another object and the model compiled, else ``connect(new, self)``.
    If the description changed and the device is attached, send the hyper-parameters (no weights). If
    attached, *upload*.
``detachFromDevice()``
    ``read_back(optimizer)``.
``copyWeightsToDevice()``
    ``read_back(optimizer)`` first.
``save()``, export with the model
    ``read_back(optimizer)``, then pickle the optimizer; for an offline target only the latter.
``destroy()``
    ``read_back(optimizer)``, then ``disconnect(optimizer)``.

The functions log the phrases about state ("Writing optimiser state tensors ..."); the executor need not.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from poptorch._logging import logger
from poptorch.errors import backend_error
from poptorch.optim.base import Optimizer


@runtime_checkable
class StateBridge(Protocol):
    """The executor, as far as an optimizer knows it."""

    def read_state(self) -> dict[str, Tensor]:
        """Copies of the optimizer state on the device, under the names of ``ipu_state``."""

    def read_params(self) -> dict[str, Tensor]:
        """Copies of the scalars on the device, under the names of ``ipu_param``."""


def connect(optimizer: torch.optim.Optimizer, bridge: StateBridge) -> None:
    """Let ``optimizer.state_dict()`` ask ``bridge`` for state."""
    if isinstance(optimizer, Optimizer):
        optimizer._bridge = weakref.ref(bridge)


def disconnect(optimizer: torch.optim.Optimizer, bridge: StateBridge | None = None) -> None:
    """Leave the optimizer with what the host knows, unless another executor than ``bridge`` is connected to it."""
    if isinstance(optimizer, Optimizer):
        connected = None if optimizer._bridge is None else optimizer._bridge()
        if bridge is not None and connected is not None and connected is not bridge:
            return
        optimizer._bridge = None
        optimizer.host_state_is_dirty = False


def replace(old: torch.optim.Optimizer, new: torch.optim.Optimizer, bridge: StateBridge) -> None:
    """Hand a compiled program over to another optimizer object.

    The device keeps its momenta unless ``new`` carries state.
    """
    if old is not new:
        read_back(old)
        disconnect(old, bridge)
        if isinstance(new, Optimizer):
            new.ipu_state_is_dirty, new.host_state_is_dirty = True, False
    connect(new, bridge)


def after_compile(optimizer: torch.optim.Optimizer) -> None:
    """The device holds the initial state; an optimizer that has none can fetch it."""
    if isinstance(optimizer, Optimizer) and not optimizer.has_state():
        optimizer.ipu_state_is_dirty, optimizer.host_state_is_dirty = False, True


def expect_upload(optimizer: torch.optim.Optimizer) -> None:
    """The device was attached anew: state that the host has must be written to it."""
    if isinstance(optimizer, Optimizer) and optimizer.has_state() and not optimizer.host_state_is_dirty:
        optimizer.ipu_state_is_dirty = True


def pending_state(optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]] | None:
    """``ipu_state`` and ``ipu_param`` that wait for their upload, or ``None``."""
    if not isinstance(optimizer, Optimizer) or not optimizer.ipu_state_is_dirty:
        return None
    if not optimizer.has_state():  # a fresh optimizer took over: the device's state goes on
        optimizer.ipu_state_is_dirty = False
        return None
    return dict(optimizer._device_state)


def uploaded(optimizer: torch.optim.Optimizer) -> None:
    """The pending state is on the device."""
    if isinstance(optimizer, Optimizer):
        optimizer.ipu_state_is_dirty = False


def set_params(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor], *, replace_loaded: bool) -> None:
    """The device was given scalars: those of the state that the host keeps are out of date, unless the user loaded
    them."""
    if isinstance(optimizer, Optimizer) and optimizer.has_state():
        if optimizer._params_are_loaded and not replace_loaded:
            return
        optimizer._device_state = {
            **optimizer._device_state, "ipu_param": {name: value.clone() for name, value in params.items()}
        }  # fmt: skip


def before_run(optimizer: torch.optim.Optimizer) -> None:
    """The program is about to run: however it ends, the state on the device is newer than the host's."""
    # Schedulers of torch warn if nobody called optimizer.step() before theirs; the device has done just that.
    optimizer._opt_called = True  # type: ignore[attr-defined]
    if isinstance(optimizer, Optimizer):
        optimizer.ipu_state_is_dirty, optimizer.host_state_is_dirty = False, True


def device_has_newer(optimizer: torch.optim.Optimizer) -> None:
    """State came to the device on another way than through this optimizer."""
    if isinstance(optimizer, Optimizer):
        optimizer.ipu_state_is_dirty, optimizer.host_state_is_dirty = False, True


def read_back(optimizer: torch.optim.Optimizer) -> None:
    """Fetch the device's state if it is newer."""
    if isinstance(optimizer, Optimizer) and optimizer.host_state_is_dirty:
        optimizer.fetch_state()


def write_state(
    device_state: MutableMapping[str, Tensor],
    device_params: MutableMapping[str, Tensor],
    pending: Mapping[str, Mapping[str, Any]],
) -> None:
    """Copy what :func:`pending_state` returned into the device's tensors, in place.

    Everything is checked before anything is written. Missing entries are mentioned and keep the device's
    value, unknown ones are left out.
    """
    writes = [
        *_matching(device_state, pending["ipu_state"], "state"),
        *_matching(device_params, pending["ipu_param"], "parameter"),
    ]
    logger.debug("Writing optimiser state tensors from host to IPU memory")
    with torch.no_grad():
        for target, value in writes:
            target.copy_(value)


def _matching(device: Mapping[str, Tensor], loaded: Mapping[str, Any], what: str) -> list[tuple[Tensor, Tensor]]:
    writes = []
    for name, target in device.items():
        if name not in loaded:
            logger.warning("load_state_dict: ignoring missing %s %s, the device keeps its value", what, name)
            continue
        value = loaded[name]
        if not isinstance(value, Tensor):
            raise backend_error(f"Optimizer {what} {name} is a {type(value).__name__}, not a tensor")
        if value.shape != target.shape or value.dtype != target.dtype:
            raise backend_error(
                f"Optimizer {what} {name} has shape {tuple(value.shape)} and type {value.dtype}, but the "
                f"compiled model needs {tuple(target.shape)} and {target.dtype}: the state dictionary "
                "belongs to another model or to an optimizer with other accumulation types."
            )
        writes.append((target, value))
    return writes
