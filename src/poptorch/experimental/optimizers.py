"""Torch optimizers in code under capture: their parameters are on the device, and so is their state.

While code is captured, optimizers that hold parameters of the named module hold the stand-ins instead, whenever and
wherever they were made. A step is recorded as it computes, in the form that torch has for devices (``capturable``),
where a counter stays a tensor. State that a step makes becomes state of the next program (:class:`NewState`).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode

from poptorch._logging import logger


@dataclass(frozen=True)
class StateSlot:
    """Where one tensor of an optimizer's state belongs."""

    optimizer: weakref.ref[Optimizer]
    parameter: Tensor
    """The user's own."""

    key: str


@dataclass(frozen=True)
class NewState:
    """State that a step has made, with its value under capture."""

    slot: StateSlot
    value: Tensor


def existing_state(parameters: Sequence[Tensor]) -> list[tuple[StateSlot, Tensor]]:
    """The state that optimizers of these parameters have on the host, with copies of its values."""
    wanted = {id(p) for p in parameters}
    return [
        (StateSlot(weakref.ref(optimizer), parameter, key), value.detach().clone())
        for optimizer in _optimizers_of(parameters)
        for parameter, values in optimizer.state.items()
        if id(parameter) in wanted
        for key, value in values.items()
        if isinstance(value, Tensor)
    ]


class FrozenNumbers:
    """Learning rates and all else that optimizers have in their groups: a program has the values of its capture."""

    def __init__(self) -> None:
        self._used: list[tuple[weakref.ref[Optimizer], list[dict[str, Any]]]] = []

    def note(self, optimizer: Optimizer) -> None:
        """The optimizer makes a step under capture."""
        if all(reference() is not optimizer for reference, _ in self._used):
            self._used.append((weakref.ref(optimizer), [_settings(group) for group in optimizer.param_groups]))

    def warn_of_changes(self) -> None:
        """Tell, once for each, of values that are not those of the program any more."""
        for reference, groups in self._used:
            optimizer = reference()
            for index, used in enumerate(groups):
                now = {} if optimizer is None else _settings(optimizer.param_groups[index])
                for key in [key for key in used if key in now and now[key] != used[key]]:
                    logger.warning(
                        "%r of %s is %s, but the function was captured with %s, which is frozen into the program. "
                        "Capture the function again, with a new IPUContext, for other values.",
                        key,
                        type(optimizer).__name__,
                        now[key],
                        used.pop(key),
                    )


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    settings = {key: value.tolist() if isinstance(value, Tensor) else value for key, value in group.items()}
    return {key: value for key, value in settings.items() if key not in ("params", "param_names", *_FORMS)}


class Optimizers:
    """All optimizers of the parameters in question, for one run of the code."""

    def __init__(self, parameters: Sequence[tuple[Tensor, Tensor]]) -> None:
        """``parameters`` are the user's tensors, each with its stand-in."""
        self._stand_ins = {id(own): stand_in for own, stand_in in parameters}
        self._owns = {id(stand_in): own for own, stand_in in parameters}
        self._parameters = parameters
        self._before: dict[int, tuple[weakref.ref[Optimizer], dict[Tensor, Any] | None]] = {}
        """Every optimizer that was seen, with the state that it had on the host; ``None``: it is new."""

        self._given: list[tuple[StateSlot, Tensor]] = []
        self.numbers = FrozenNumbers()
        """Those of all steps."""

    @contextmanager
    def on_device(self, state: Sequence[tuple[StateSlot, Tensor]]) -> Iterator[None]:
        """In here, optimizers work on stand-ins; ``state`` is what earlier programs left on the device."""
        self._given = list(state)
        with _recorded_steps(self._steps):
            try:
                for optimizer in _optimizers_of([own for own, _ in self._parameters]):
                    self._before[id(optimizer)] = (weakref.ref(optimizer), dict(optimizer.state))
                    _replace_parameters(optimizer, self._stand_ins)
                for slot, value in self._given:
                    self._put(slot, value)
                yield
            finally:
                self._restore()

    def _put(self, slot: StateSlot, value: Tensor) -> None:
        optimizer = slot.optimizer()
        if optimizer is not None:
            key = self._stand_ins.get(id(slot.parameter), slot.parameter)
            optimizer.state[key] = {**optimizer.state.get(key, {}), slot.key: value}

    def finish(self) -> list[NewState]:
        """After the code has run: write back state that was replaced, and tell of state that is new."""
        known = {(id(slot.optimizer()), id(slot.parameter), slot.key): value for slot, value in self._given}
        found = []
        for reference in self._live():
            optimizer = reference()
            assert optimizer is not None
            for parameter, values in list(optimizer.state.items()):
                own = self._owns.get(id(parameter), parameter)
                for key, value in values.items() if isinstance(values, dict) else ():
                    if not isinstance(value, Tensor):
                        continue
                    before = known.get((id(optimizer), id(own), key))
                    if before is None:
                        found.append(NewState(StateSlot(reference, own, key), value))
                    elif before is not value:
                        with torch.no_grad():
                            before.copy_(value)
        return found

    def _live(self) -> list[weakref.ref[Optimizer]]:
        """The optimizers that the code keeps: one that it makes for each call has no state that lasts."""
        if any(before is None for _, before in self._before.values()):
            gc.collect()
        return [reference for reference, _ in self._before.values() if reference() is not None]

    def _steps(self, optimizer: Optimizer) -> None:
        self._seen(optimizer)
        self.numbers.note(optimizer)

    def _seen(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._before:
            self._before[id(optimizer)] = (weakref.ref(optimizer), None)

    def _restore(self) -> None:
        for made in _optimizers_of([stand_in for _, stand_in in self._parameters]):
            self._seen(made)
        for reference, before in self._before.values():
            optimizer = reference()
            if optimizer is not None:
                _replace_parameters(optimizer, self._owns)
                optimizer.state.clear()
                optimizer.state.update(before or {})


def _optimizers_of(parameters: Sequence[Tensor]) -> list[Optimizer]:
    """All optimizers in this process that hold one of the parameters: the code may find them in any way."""
    if not parameters:
        return []
    wanted = {id(p) for p in parameters}
    return [
        candidate
        for candidate in gc.get_objects()
        if issubclass(type(candidate), Optimizer)
        and any(id(p) in wanted for group in candidate.__dict__.get("param_groups", ()) for p in group["params"])
    ]


def _replace_parameters(optimizer: Optimizer, other: dict[int, Tensor]) -> None:
    for group in optimizer.param_groups:
        group["params"] = [other.get(id(p), p) for p in group["params"]]
    state = {other.get(id(p), p): values for p, values in optimizer.state.items()}
    optimizer.state.clear()
    optimizer.state.update(state)


@contextmanager
def _recorded_steps(seen: Any) -> Iterator[None]:
    """In here, steps take the form for devices, and counters are not read by Python."""
    running = ExitStack()

    def enter(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        seen(optimizer)
        running.enter_context(_as_for_devices(optimizer))

    def leave(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        running.close()

    handles = [register_optimizer_step_pre_hook(enter), register_optimizer_step_post_hook(leave)]
    try:
        yield
    finally:
        running.close()  # a step that fails does not leave
        for handle in handles:
            handle.remove()


_FORMS = {"capturable": (False, True), "fused": (True, False)}
"""Settings of torch's own code: what they are on the host, and under capture instead."""


@contextmanager
def _as_for_devices(optimizer: Optimizer) -> Iterator[None]:
    changed = [
        (group, key, before, during)
        for group in optimizer.param_groups
        for key, (before, during) in _FORMS.items()
        if group.get(key) is before
    ]
    for group, key, _, during in changed:
        group[key] = during
    try:
        # Torch accepts `capturable` for tensors on the CPU from its own compiler only.
        with torch.compiler._compile_session_context(), _ExactPowers():
            yield
    finally:
        for group, key, before, _ in changed:
            group[key] = before


class _ExactPowers(TorchFunctionMode):
    """Powers of a counter in double precision, as Python computes them on the host.

    ``1 - 0.999 ** step`` cancels most digits: in single precision the first steps would differ visibly.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _POWERS and len(args) == 2:
            args = tuple(_widened(a) for a in args)
        return func(*args, **kwargs)


_POWERS = frozenset({Tensor.__rpow__, Tensor.__pow__, torch.pow, Tensor.pow})


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point() else value
