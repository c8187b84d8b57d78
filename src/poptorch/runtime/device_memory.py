"""What a device holds between calls: weights, buffers and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from poptorch.errors import createPoptorchError
from poptorch.executable.executable import Executable
from poptorch.executable.host_code import HostCode
from poptorch.program.pairs import as_stored
from poptorch.program.program import Role
from poptorch.runtime.values.weights import Weights


class DeviceMemory:
    """The tensors of all replicas. Weights that are equal on all replicas exist once."""

    def __init__(self, executable: Executable) -> None:
        program, settings = executable.program, executable.device.settings
        uses = executable.device.uses
        self._parameter_names = [p.name for p in program.ports_of(Role.PARAMETER) if uses(p.name)]
        self._buffer_names = [p.name for p in program.ports_of(Role.BUFFER) if uses(p.name)]
        self._types = {p.name: p.dtype for p in program.ports if p.role in (Role.PARAMETER, Role.BUFFER)}
        self._loop = executable.device.loop
        self._private_buffers = settings.private_buffers
        self._groups = settings.groups
        self.constants = [program.constants[p.name] for p in program.ports_of(Role.CONSTANT)]
        self.weights = Weights()
        """The parameters in the order of the program."""

        self.parameters: dict[str, torch.Tensor] = {}
        self.buffers: list[list[torch.Tensor]] = []
        """By replica, in the order of the program."""

        self._listeners: list[Callable[[], None]] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was uploaded yet."""
        return not self.weights and not self.buffers

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever weights or buffers were written."""
        self._listeners.append(listener)

    def changed(self) -> None:
        """Weights or buffers were written: what was computed ahead from them is outdated."""
        self.weights.changed()
        for listener in self._listeners:
            listener()

    def allocate(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Make the tensors of the device, with these values."""

        check_values({name: tensors[name] for name in (*self._parameter_names, *self._buffer_names)})

        def device_copy(name: str) -> torch.Tensor:
            dtype = self._types[name]
            tensor = as_stored(tensors[name].detach(), dtype)
            return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)

        self.weights = Weights(device_copy(name) for name in self._parameter_names)
        self.parameters = dict(zip(self._parameter_names, self.weights, strict=True))
        copies = self._loop.replicas if self._private_buffers else 1
        private = [[device_copy(name) for name in self._buffer_names] for _ in range(copies)]
        self.buffers = private if copies > 1 else private * self._loop.replicas

    def write(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite all weights and buffers; every replica gets the same values."""
        given = {name: tensors[name] for name in (*self._parameter_names, *self._buffer_names)}
        check_values(given)
        self.write_some(given)

    def write_some(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite the weights and buffers of these names."""
        for name, target in self.parameters.items():
            if name in tensors:
                target.copy_(as_stored(tensors[name], target.dtype))
        self.write_buffers(tensors, [name for name in self._buffer_names if name in tensors])

    def write_buffers(self, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> None:
        """Overwrite some buffers on all replicas."""
        for buffers in {id(b): b for b in self.buffers}.values():
            for name, target in zip(self._buffer_names, buffers, strict=True):
                if name in names:
                    target.copy_(tensors[name])
        self.changed()

    def read(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name (not copied; those of the first replica)."""
        buffers = self.buffers[0] if self.buffers else []
        return {**self.parameters, **dict(zip(self._buffer_names, buffers, strict=True))}

    def arrange(self, code: HostCode, others: Mapping[int, tuple[str, torch.Tensor]]) -> None:
        """Let weights lie in memory as the code wants them, and with them other tensors of the same parameters.

        ``others`` are the parameter's name and the tensor, by the tensor's number.
        """
        for name, tensor in (*self.parameters.items(), *others.values()):
            arranged = code.format_of(name, tensor)
            if arranged is not tensor:
                tensor.set_(arranged.untyped_storage(), 0, arranged.shape, arranged.stride())
        self.changed()

    def replica_parameter(self, replica: int, name: str, whole: torch.Tensor | None = None) -> torch.Tensor:
        """A parameter as one replica of this process sees it: its own row, where replicas have values of their own.

        ``whole`` are the values of all replicas, if not those that the device holds.
        """
        grouping, whole = self._groups.get(name), self.parameters[name] if whole is None else whole
        return whole if grouping is None else whole[grouping.group_of(self._loop.global_replica(replica))]

    def replica_buffer(self, replica: int, name: str) -> torch.Tensor:
        """A buffer of one replica."""
        return self.buffers[replica][self._buffer_names.index(name)]

    def copy_of(self, name: str) -> torch.Tensor:
        """The value of a parameter, in rows."""
        return self.parameters[name].clone(memory_format=torch.contiguous_format)


def check_values(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse to load what has no values.

    >>> check_values({"weight": torch.empty(2, device="meta")})
    Traceback (most recent call last):
    poptorch.errors.Error: ...
    """
    missing = [name for name, tensor in tensors.items() if tensor.is_meta]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise createPoptorchError(
            f"{missing[0]}{more} of the model cannot be loaded: on the meta device there are no values. Give values to "
            "the parameters and buffers that this process runs before the model is wrapped. With several processes for "
            "each replica, poptorch.tensorsOfProcess(model, options, *arguments) lists them."
        )
