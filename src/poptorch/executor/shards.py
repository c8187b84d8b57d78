"""What one process holds of the state of a training job, as pieces of tensors that all processes know by one name.

Nothing is copied: a piece is the memory of the device, or of the host where the device has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from poptorch.executor.session import Session
from poptorch.program.program import Role

MODEL, STATE = "model", "state"
"""The two kinds of tensors: those of the model's ``state_dict()``, and all others."""


@dataclass(frozen=True)
class Piece:
    """Consecutive elements of a tensor, or the whole."""

    kind: str
    name: str
    values: torch.Tensor
    """The memory itself."""

    shape: tuple[int, ...]
    """That of the whole tensor, as it is kept in files."""

    start: int = 0
    """The first element, of a tensor of one dimension that is divided among processes."""

    divided: bool = False
    on_device: bool = True
    differs: bool = False
    """Whether processes with other data have other values, of which those of the first process count."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the piece."""
        return (self.values.numel(),) if self.divided else self.shape


def pieces_of(session: Session) -> list[Piece]:
    """All that the next step of a training program depends on, as far as this process has it."""
    return [*_weights(session), *_optimizer_state(session)]


def _weights(session: Session) -> list[Piece]:
    weights, engine = session.wrapped.weights, session.engine
    model = session.wrapped.user_model
    written = {port.name for port in session.program.mutated() if port.role is Role.BUFFER}
    device = engine.download()
    portion = session.executable.device.portion
    elsewhere = set() if portion is None else portion.blocks.homes.keys() - device.keys()
    found = []
    with weights.unwatched(), torch._C.DisableTorchFunctionSubclass():
        persistent = model.state_dict().keys()
        for name, tensor in weights.tensors().items():
            without = tensor.is_meta or torch._debug_has_internal_overlap(tensor) == 1
            if name not in device and (name in elsewhere or without):
                continue  # another process has it, or there is no memory of its own
            kind, label = (MODEL, name) if name in persistent else (STATE, f"buffer/{name}")
            values = device.get(name, tensor).detach()
            values = torch.view_as_real(values) if values.is_complex() else values
            shape = tuple(values.shape)
            found.append(Piece(kind, label, values, shape, on_device=name in device, differs=name in written))
    return found


def _optimizer_state(session: Session) -> Iterator[Piece]:
    """In one dimension, whatever the parameter's: so it can be divided in other ways than it was."""
    link = session.wrapped.link
    if link is None:
        return
    for name, (tensor, division) in link.pieces().items():
        label = f"optimizer/{name}"
        if division is None:
            yield Piece(STATE, label, tensor, (tensor.numel(),))
        else:
            yield Piece(STATE, label, tensor, (division.elements,), division.start, divided=True)
