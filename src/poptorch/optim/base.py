"""What the five ``poptorch.optim`` optimizers share: device state on the host, and complete copies."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from poptorch._logging import logger
from poptorch.errors import NotCompiledError, createPoptorchError, misuse
from poptorch.optim.attributes import VariableAttributes

if TYPE_CHECKING:
    from poptorch.optim.bridge import StateBridge

DEVICE_KEYS = ("ipu_state", "ipu_param")

_TORCH_OWN = ("defaults", "state", "param_groups")
_FLAGS = ("ipu_state_is_dirty", "host_state_is_dirty")


class Optimizer(torch.optim.Optimizer):
    """Base of the optimizers whose state lives on the device while a model trains.

    Its objects are ordinary PyTorch optimizers too: without a wrapped model they train on the CPU with
    ``zero_grad()`` and ``step()``.
    """

    variable_attrs: VariableAttributes
    ipu_state_is_dirty: bool
    """The host holds state that is newer than the device's; it will be uploaded."""
    host_state_is_dirty: bool
    """The device holds state that is newer than the host's; ``state_dict()`` will fetch it."""

    def __init__(self) -> None:
        # Subclasses call the constructor of their torch parent themselves: its arguments differ.
        self._forget_device()

    def _forget_device(self) -> None:
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = False
        self._device_state: dict[str, Any] = dict.fromkeys(DEVICE_KEYS)
        self._params_are_loaded = False
        self._bridge: weakref.ref[StateBridge] | None = None

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's dictionary plus ``ipu_state`` and ``ipu_param``, fetched from the device if they are
        stale.

        >>> import poptorch
        >>> optimizer = poptorch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        >>> sorted(optimizer.state_dict())
        ['ipu_param', 'ipu_state', 'param_groups', 'state']
        """
        self.fetch_state()
        return self.get_state_dict()

    def fetch_state(self) -> None:
        """Bring the host's copy of the device state up to date."""
        if self.host_state_is_dirty and self.ipu_state_is_dirty:
            raise createPoptorchError("Both host and ipu states cannot be dirty at the same time.")
        bridge = self._bridge() if self._bridge is not None else None
        if not self.host_state_is_dirty:
            if bridge is not None:
                logger.debug("Using cached optimiser state dict")
            return
        if bridge is None:
            raise misuse(
                NotCompiledError,
                "Model has not been compiled or has been destroyed. The optimizer's newest state went with "
                "it: call state_dict() while the model is alive.",
            )
        logger.debug("Writing optimiser state tensors from IPU to host.")
        # Before reading: a call of the model that another thread begins meanwhile makes the copy outdated again.
        self.host_state_is_dirty = False
        try:
            self._device_state = {"ipu_state": bridge.read_state(), "ipu_param": bridge.read_params()}
            self._params_are_loaded = False
        except BaseException:
            self.host_state_is_dirty = True
            raise

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over ``state``; its device part is uploaded before the model runs again.

        The values in ``param_groups`` are overwritten; call ``setOptimizer`` on the model to make them count.
        """
        super().load_state_dict(state)
        self.set_state_dict(state)

    def get_state_dict(self) -> dict[str, Any]:
        """Like :meth:`state_dict`, but only what the host knows already."""
        return {**self._device_state, **super().state_dict()}

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Keep (by reference) the device part of ``state`` and have it uploaded."""
        if not state:
            raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
        if any(key not in state for key in DEVICE_KEYS):
            raise RuntimeError(
                "Only IPU optimizer states can be loaded onto the IPU. The dictionary has the keys "
                f"{sorted(state)}: pass one from a poptorch optimizer, which also has {' and '.join(DEVICE_KEYS)}."
            )
        self._device_state = {key: state[key] for key in DEVICE_KEYS}
        self._params_are_loaded = True
        self.ipu_state_is_dirty = True
        self.host_state_is_dirty = False

    def has_state(self) -> bool:
        """Whether device state has been loaded into, or fetched by, this optimizer."""
        return all(self._device_state.get(key) is not None for key in DEVICE_KEYS)

    def __getstate__(self) -> dict[str, Any]:
        # Public names are ours or the user's. What torch keeps besides is rebuilt by its own __setstate__;
        # callables are methods that learning rate schedulers wrapped around this very object.
        extras = {
            name: value
            for name, value in self.__dict__.items()
            if not name.startswith("_") and name not in _TORCH_OWN + _FLAGS and not callable(value)
        }
        extras["variable_attrs"] = self.variable_attrs.copy()
        self_state = {name: self.__dict__[name] for name in _TORCH_OWN}
        return {**self_state, "_poptorch": {**extras, "_device_state": self._device_state}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # torch calls this too, from load_state_dict, without our entry: nothing of ours changes then.
        state = dict(state)
        extras = state.pop("_poptorch", None)
        super().__setstate__(state)
        if extras is not None:
            self._forget_device()
            self.__dict__.update(extras)
            self.ipu_state_is_dirty = self.has_state()


def given(**arguments: Any) -> dict[str, Any]:
    """The arguments that the caller passed: those that are not ``None``.

    >>> given(lr=0.1, momentum=None)
    {'lr': 0.1}
    """
    return {name: value for name, value in arguments.items() if value is not None}
