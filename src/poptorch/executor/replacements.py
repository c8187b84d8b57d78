"""Tensors of a model that the user replaced by others after the model was compiled.

Such as ``model.fc.weight = nn.Parameter(...)``, ``model.fc = nn.Linear(...)`` or ``load_state_dict(..., assign=True)``.
A call compares the number of ``changes`` only; the tensors themselves are compared when it is another one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn

from poptorch.capture.state import StateKind, collect_state
from poptorch.errors import ModelChangedError, misuse
from poptorch.executor.changes import changes
from poptorch.executor.instrumentation import own_class
from poptorch.program.program import type_text

_ADVICE = "The compiled program does not follow that: call destroy() on the executor and wrap the model again."


@dataclass(frozen=True)
class _Known:
    """A parameter or buffer as it was when the model was compiled."""

    kind: StateKind
    tensor: torch.Tensor
    names: tuple[str, ...]
    shape: torch.Size
    dtype: torch.dtype
    trained: bool


@dataclass(frozen=True)
class Replacement:
    """One tensor in the place of another."""

    old: torch.Tensor
    new: torch.Tensor


class KnownState:
    """The parameters and buffers of a model that was compiled. To be used while looks at them are not watched."""

    def __init__(self, model: nn.Module) -> None:
        changes.listen()
        self._model = model
        self._modules = _module_types(model)
        self._entries = _entries(model)

    def is_known(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the one that was compiled under this name."""
        return name in self._entries and self._entries[name].tensor is tensor

    def replaced(self, grouped: Collection[str], *, training: bool) -> dict[str, Replacement]:
        """The tensors with others in their places, by name; an error if the program does not fit the model any more.

        The shapes of ``grouped`` parameters change with the number of replicas, and are not compared.
        """
        now = _entries(self._model)
        _check_names(self._entries, now)
        if _module_types(self._model) != self._modules:
            raise misuse(
                ModelChangedError, f"The model has modules of other classes than when it was compiled. {_ADVICE}"
            )
        for name, before in self._entries.items():
            after = now[name]
            if before.names != after.names:
                raise misuse(
                    ModelChangedError,
                    f"{before.kind.value} {name} had {_listed(before.names)} when the model was compiled, and has "
                    f"{_listed(after.names)} now. {_ADVICE}",
                )
            same_shape = name in grouped or before.shape == after.shape
            if before.kind is not after.kind or not same_shape or before.dtype != after.dtype:
                raise misuse(
                    ModelChangedError,
                    f"{before.kind.value} {name} was {type_text(before.dtype, before.shape)} when the model was "
                    f"compiled, and is {after.kind.value.lower()} {type_text(after.dtype, after.shape)} now. {_ADVICE}",
                )
            if training and before.kind is StateKind.PARAMETER and before.trained != after.trained:
                how = ("froze", "not ") if before.trained else ("unfroze", "")
                raise misuse(
                    ModelChangedError,
                    f"requires_grad_({after.trained}) {how[0]} parameter {name} after the model was compiled, so that "
                    f"it should {how[1]}be trained from now on. {_ADVICE}",
                )
        return {
            name: Replacement(known.tensor, now[name].tensor)
            for name, known in self._entries.items()
            if now[name].tensor is not known.tensor
        }

    def accept(self) -> None:
        """What the model has now is what the device has."""
        self._entries = _entries(self._model)


def _entries(model: nn.Module) -> dict[str, _Known]:
    with torch._C.DisableTorchFunctionSubclass():
        return {
            entry.name: _Known(
                entry.kind,
                entry.tensor,
                tuple(entry.names),
                entry.tensor.shape,
                entry.tensor.dtype,
                entry.tensor.requires_grad,
            )
            for entry in collect_state(model)
        }


def _module_types(model: nn.Module) -> dict[str, type]:
    """The classes of all modules, as the user wrote them."""
    return {name: own_class(module) for name, module in model.named_modules(remove_duplicate=False)}


def _check_names(before: dict[str, _Known], now: dict[str, _Known]) -> None:
    """Refuse tensors that were added, removed or tied to others."""
    for name in now:
        if name not in before:
            raise misuse(
                ModelChangedError,
                f"{now[name].kind.value} {name} was added to the model after it was compiled, or is no longer the same "
                f"tensor as another one. {_ADVICE}",
            )
    for name in before:
        if name not in now:
            raise misuse(
                ModelChangedError,
                f"{before[name].kind.value} {name} was removed from the model after it was compiled, or is the same "
                f"tensor as another one now. {_ADVICE}",
            )


def _listed(names: tuple[str, ...]) -> str:
    return f"the names {', '.join(names)}" if len(names) > 1 else "no other name"
