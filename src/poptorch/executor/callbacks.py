"""Callbacks: objects that are told when a program is compiled, has run, has updated the weights, and has ended."""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from poptorch.errors import createPoptorchError

if TYPE_CHECKING:
    from poptorch.capture.arguments import BoundCall
    from poptorch.executor.executor import PoplarExecutor
    from poptorch.executor.optimizer_link import OptimizerLink
    from poptorch.executor.session import Session


@dataclass(frozen=True, slots=True)
class Event:
    """What a callback is told."""

    executor: PoplarExecutor
    step: int
    """Calls so far that callbacks were told of, this one included."""

    updates: int
    """Updates of the weights in those calls."""

    result: Any = None
    """What the call returned."""

    seconds: float = 0.0
    """How long the compilation or the call took."""

    optimizer: torch.optim.Optimizer | None = None
    """The optimizer of a training model."""


class Callback:
    """Derive from this, and define what you want to hear of. Exceptions reach the program that made the call."""

    def on_compile(self, event: Event) -> None:
        """A program was compiled."""

    def on_step(self, event: Event) -> None:
        """A call is over; ``event.result`` is what it returns."""

    def on_update(self, event: Event) -> None:
        """A call of a training model has updated the weights: once or, with device iterations, several times."""

    def on_end(self, event: Event) -> None:
        """The executor was destroyed."""


class Callbacks:
    """The callbacks of an executor. One that has none does not have this object, and its calls do not pay for it."""

    def __init__(self, executor: PoplarExecutor, link: OptimizerLink | None) -> None:
        self._executor: Any = weakref.proxy(executor)
        self._link = link
        self._callbacks: OrderedDict[int, Callback] = OrderedDict()
        self._step = self._updates = 0

    def add(self, callback: Callback) -> RemovableHandle:
        """Tell one more."""
        if not isinstance(callback, Callback):
            raise createPoptorchError(
                f"addCallback() takes an object of a class derived from Callback, not {type(callback).__name__}."
            )
        handle = RemovableHandle(self._callbacks)
        self._callbacks[handle.id] = callback
        return handle

    def compiled(self, session: Session) -> None:
        """A program was compiled."""
        self._tell("on_compile", None, session.compile_time.total_seconds())

    def run(self, session: Session, call: BoundCall) -> Any:
        """Run a program, and tell of it."""
        begun = time.perf_counter()
        result = session.run(call)
        seconds = time.perf_counter() - begun
        self._step += 1
        updates = _updates_of(session)
        self._updates += updates
        self._tell("on_step", result, seconds)
        if updates:
            self._tell("on_update", result, seconds)
        return result

    def ended(self) -> None:
        """The executor was destroyed."""
        self._tell("on_end", None, 0.0)

    def _tell(self, method: str, result: Any, seconds: float) -> None:
        optimizer = None if self._link is None else self._link.optimizer
        event = Event(self._executor, self._step, self._updates, result, seconds, optimizer)
        for callback in list(self._callbacks.values()):  # a callback may remove itself
            getattr(callback, method)(event)


def _updates_of(session: Session) -> int:
    """How often a call updates the weights."""
    if session.executable.update is None:
        return 0
    return session.executable.code.loop.device_iterations
