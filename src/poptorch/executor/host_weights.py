"""Weights and buffers between host and device: who has the newer ones, and when they are copied."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from poptorch._logging import backend, logger
from poptorch.capture.state import collect_state
from poptorch.devices.attachment import Device
from poptorch.errors import createPoptorchError
from poptorch.executor import instrumentation
from poptorch.executor.build import Build
from poptorch.executor.optimizer_link import OptimizerLink
from poptorch.options import Options
from poptorch.program.replica_groups import ReplicaGrouping
from poptorch.runtime.engine import Engine


class WeightTransfer:
    """The part of an executor that copies weights."""

    _captured: nn.Module
    _model: nn.Module
    _user_model: nn.Module
    _options: Options
    _device: Device | None
    _link: OptimizerLink | None
    _groups: dict[str, ReplicaGrouping]
    _host_weights_stale: bool
    _host_version: int
    _uploaded_version: Any

    def _host_tensors(self) -> dict[str, torch.Tensor]:
        return {entry.name: entry.tensor for entry in collect_state(self._captured)}

    def _parameter_names(self) -> dict[int, str]:
        return {id(entry.tensor): entry.name for entry in collect_state(self._captured)}

    def _upload(self, engine: Engine) -> None:
        if not self._is_offline():
            backend.debug("Writing weights from host to IPU memory.")
        self._newer_training_weights()
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            tensors = self._host_tensors()
            for name, grouping in self._groups.items():
                tensors[name] = grouping.to_device(tensors[name])
            engine.upload(tensors)

    def copyWeightsToDevice(self) -> None:
        """Overwrite the device's parameters and buffers with the host's; training not yet fetched is lost."""
        _, engine = self._compiled()
        self._check_attached()
        self._host_weights_stale = False
        with self._unwatched():
            if self._link is not None:
                self._link.read_back()
            self._upload(engine)

    def _check_attached(self) -> None:
        if self._device is None:
            raise createPoptorchError(
                "Device is not attached: call attachToDevice() before copying weights between host and device"
            )

    def copyWeightsToHost(self) -> None:
        """Overwrite the host's parameters and buffers with the device's."""
        _, engine = self._compiled()
        self._check_attached()
        backend.debug("Writing weights from IPU to host.")
        # Cleared first: writing to the user's tensors looks at them.
        self._host_weights_stale = False
        # Somebody may look at weights, or drop an executor, while another model is being captured.
        with self._unwatched(), _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            host = self._host_tensors()
            engine.return_host_memory(host)
            values = engine.download()
            for name, tensor in host.items():
                value = values[name]
                if name in self._groups:
                    value = self._groups[name].to_host(value)
                    if tensor.shape != value.shape:  # one row for each group becomes one for each replica
                        tensor.data = tensor.new_empty(value.shape)
                tensor.copy_(value)
        self._host_version += 1

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Fetch weights if the device trained since the last time; tells whether it did."""
        if not self._host_weights_stale:
            return False
        logger.debug("Implicit copyWeightsToHost()")
        self.copyWeightsToHost()
        return True

    def _lend_weights(self, engine: Engine) -> None:
        """Nobody has looked at the host's weights for some calls: let the device use their memory."""
        with self._unwatched(), torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            host = self._host_tensors()
            engine.borrow({n: t for n, t in host.items() if instrumentation.is_watched_by(t, self)})

    def _save_weights(self) -> None:
        self.copyWeightsToHostIfNeeded()

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """Load into the user's model and, if attached, onto the device."""
        self.copyWeightsToHostIfNeeded()  # what the dictionary does not mention must not be lost
        with self._unwatched():
            result = self._model.load_state_dict(state_dict, strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result

    def copyNamedBuffersToDevice(self) -> None:
        """Refresh the buffers declared with ``Options.updatableNamedBuffers`` from the host, and nothing else."""
        _, engine = self._compiled()
        names = self._options._Popart.options.get("updatableNamedBuffers")
        if not names:
            raise createPoptorchError(
                "No named buffers marked as updatable: list them with poptorch.Options().updatableNamedBuffers([...])"
            )
        with self._unwatched(), torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            engine.upload_buffers(self._host_tensors(), list(names))

    def _check_updatable_buffers(self, build: Build) -> None:
        known = {name for name, _ in self._captured.named_buffers()}
        for name in self._options._Popart.options.get("updatableNamedBuffers", ()):
            if name not in known:
                raise createPoptorchError(
                    f"Buffer {name}, marked as updatable, does not exist: the model has {sorted(known)}"
                )

    def _follow_training(self) -> None:
        """Before inference: take over what a training executor of the same model learned."""
        if self._newer_training_weights():
            logger.debug("Implicit copyWeightsToDevice()")
            self.copyWeightsToDevice()

    def _newer_training_weights(self) -> bool:
        """Whether a training executor of the same model has, or had until now, newer weights than this one uploaded."""
        owner = instrumentation.owner_of(self._user_model)
        if owner is None or owner is self:
            return False
        owner.copyWeightsToHostIfNeeded()
        version = (owner._identity, owner._host_version)
        newer, self._uploaded_version = version != self._uploaded_version, version
        return newer

    # What the executor provides:

    if TYPE_CHECKING:

        def _compiled(self) -> tuple[Build, Engine]: ...
        def _is_offline(self) -> bool: ...
        def _unwatched(self) -> AbstractContextManager[None]: ...
        def isAttachedToDevice(self) -> bool: ...
