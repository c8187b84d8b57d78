"""The life cycle of the communication between instances, and what runs on some of them only.

Instances talk through the same group of processes as models that train over several processes do: gloo, from
``torch.distributed``. A job of one instance needs none, and does not import torch for it.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from popdist import context

if TYPE_CHECKING:
    from poptorch.distributed.process_group import ProcessGroup

P = ParamSpec("P")
R = TypeVar("R")

_DEFAULT = "default"


class popdist_error(RuntimeError):
    """Something is wrong with the communication between instances."""


class _State:
    """What this process has done so far."""

    registered: str | None = None
    initialized = False
    exit_is_registered = False
    members: frozenset[int] | None = None
    """The instances that take part in the running ``execute_on_instances``; ``None``: all."""


_state = _State()


def init() -> None:
    """Load and initialise the default backend, and have it finalised at exit. Doing it again changes nothing."""
    initializeBackend()
    if not _state.exit_is_registered:
        _state.exit_is_registered = True
        atexit.register(finalizeBackend)


def isBackendInitialized() -> bool:
    """Whether a backend is up.

    >>> initializeBackend()
    >>> isBackendInitialized()
    True
    >>> finalizeBackend()
    >>> isBackendInitialized()
    False
    """
    return _state.initialized


def initializeBackend() -> None:
    """Initialise the registered backend, or else the default one. Doing it again changes nothing.

    With several instances, this waits until all have come.
    """
    if _state.initialized:
        return
    if _state.registered is None:
        registerDefaultBackend()
    if context.getNumInstances() > 1:
        if _state.registered != _DEFAULT:
            raise popdist_error(
                f"The communication library {_state.registered!r} cannot be loaded: instances talk through gloo, which "
                "is the default. Leave out registerBackend()."
            )
        _everybody()
    _state.initialized = True


def finalizeBackend() -> None:
    """Close the backend, if one is up."""
    if _state.initialized and context.getNumInstances() > 1:
        from popdist import collectives
        from poptorch.distributed import process_group

        collectives.close()
        process_group.shutdown()
    _state.initialized = False
    _state.registered = None


def registerDefaultBackend() -> None:
    """Choose the default communication library."""
    _register(_DEFAULT)


def registerBackend(path: str) -> None:
    """Choose a communication library by its path. A job of one instance does not load it; others use the default."""
    _register(str(path))


def synchronize() -> None:
    """Wait until all instances are here; inside ``execute_on_instances``, those that take part."""
    if participants() > 1:
        group("popdist.synchronize()").barrier()


def execute_on_instances(instances: Iterable[int], func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call ``func`` on some instances; the others get ``None`` at once.

    Inside, only these instances take part in synchronisation and in other operations of all instances.

    >>> execute_on_instances({0}, max, 3, 5)
    5
    """
    members, count = frozenset(instances), context.getNumInstances()
    unknown = sorted(number for number in members if number not in range(count))
    if unknown:
        raise ValueError(f"There is no instance {unknown[0]}: the job has {count}, numbered from 0.")
    if _state.members is not None and not members <= _state.members:
        outside = sorted(members - _state.members)
        raise ValueError(f"Instance {outside[0]} does not take part in the execute_on_instances() around this one.")
    if context.getInstanceIndex() not in members:
        return None
    before, _state.members = _state.members, members
    try:
        if not _state.initialized or count == 1:
            return func(*args, **kwargs)
        from poptorch.distributed import process_group

        with process_group.use_only(set(members)):
            return func(*args, **kwargs)
    finally:
        _state.members = before


def participants() -> int:
    """How many instances take part in what happens now: all, or those of ``execute_on_instances``.

    >>> participants()
    1
    """
    return context.getNumInstances() if _state.members is None else len(_state.members)


def group(what: str) -> ProcessGroup:
    """The instances that take part, as a group that can communicate; ``what`` needs it."""
    from poptorch.distributed import process_group

    current = process_group.current() if _state.initialized else None
    if current is None:
        raise popdist_error(
            f"{what} needs the {context.getNumInstances()} instances to be in contact: call popdist.init() first."
        )
    return current


def _everybody() -> ProcessGroup:
    from poptorch.distributed import process_group

    return process_group.ensure_initialized(context.getInstanceIndex(), context.getNumInstances())


def _register(library: str) -> None:
    if _state.registered not in (None, library):
        raise popdist_error(
            f"A process has one communication library: {_state.registered!r} is registered already, so {library!r} "
            "cannot be. Call finalizeBackend() first."
        )
    _state.registered = library
