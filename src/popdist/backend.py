"""The life cycle of the communication between instances, and what runs on some of them only.

There is no communication yet. A job of one instance needs none, and everything works. With more instances, each
function that would have to talk to another process raises.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from popdist import context

P = ParamSpec("P")
R = TypeVar("R")

_DEFAULT = "default"


class _State:
    """What this process has done so far."""

    registered: str | None = None
    initialized = False
    members: frozenset[int] | None = None
    """The instances that take part in the running ``execute_on_instances``; ``None``: all."""


_state = _State()


def init() -> None:
    """Load and initialise the default backend, and have it finalised at exit. Doing it again changes nothing."""
    if not _state.initialized:
        initializeBackend()
        atexit.register(finalizeBackend)


def isBackendInitialized() -> bool:
    """Whether a backend is up.

    >>> isBackendInitialized()
    False
    """
    return _state.initialized


def initializeBackend() -> None:
    """Initialise the registered backend, or else the default one. Doing it again changes nothing."""
    _require_one("popdist.init()")
    if _state.registered is None:
        registerDefaultBackend()
    _state.initialized = True


def finalizeBackend() -> None:
    """Close the backend, if one is up."""
    _state.initialized = False
    _state.registered = None


def registerDefaultBackend() -> None:
    """Choose the default communication library."""
    _register(_DEFAULT)


def registerBackend(path: str) -> None:
    """Choose a communication library by its path. A job of one instance does not load it."""
    _register(str(path))


def synchronize() -> None:
    """Wait until all instances are here."""
    _require_one("popdist.synchronize()")


def execute_on_instances(
    instances: Iterable[int], func: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R | None:
    """Call ``func`` on some instances; the others get ``None`` at once.

    Inside, only these instances take part in synchronisation.

    >>> execute_on_instances({0}, max, 3, 5)
    5
    """
    members, count = frozenset(instances), context.getNumInstances()
    unknown = sorted(number for number in members if number not in range(count))
    if unknown:
        raise ValueError(f"There is no instance {unknown[0]}: the job has {count}, numbered from 0.")
    if context.getInstanceIndex() not in members:
        return None
    before, _state.members = _state.members, members
    try:
        return func(*args, **kwargs)
    finally:
        _state.members = before


def _register(library: str) -> None:
    if _state.registered not in (None, library):
        raise RuntimeError(
            f"A process has one communication library: {_state.registered!r} is registered already, so {library!r} "
            "cannot be. Call finalizeBackend() first."
        )
    _state.registered = library


def _require_one(what: str) -> None:
    """Refuse to go on without the other instances."""
    if _state.members is not None:
        count = len(_state.members)
    else:
        count = context.getNumInstances()
    if count > 1:
        raise RuntimeError(
            f"{what} needs {count} processes to talk to each other, which is not possible yet. Run the program as one "
            "instance (poprun --num-instances 1, or without poprun); replicas of one instance run side by side."
        )
