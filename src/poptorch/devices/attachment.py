"""Virtual IPUs: which of them are in use, and by whom."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from poptorch import environment
from poptorch._logging import TRACE, backend
from poptorch.devices.system import system
from poptorch.errors import Error, backend_error

POLL_SECONDS = 15.0
"""How long to sleep between two looks for a free device, with ``POPTORCH_WAIT_FOR_IPU``."""

_changed = threading.Condition(threading.RLock())  # re-entrant: a collected owner may free its IPUs at any point
_in_use: dict[int, Group] = {}
"""The IPUs in use, by the ticket of their owner. Guarded by ``_changed``."""

_tickets = itertools.count()


@dataclass(frozen=True)
class Group:
    """IPUs that can be attached together: ``size`` of them, aligned, from number ``first``."""

    first: int
    size: int

    def overlaps(self, other: Group) -> bool:
        """Whether some IPU is in both groups."""
        return self.first < other.first + other.size and other.first < self.first + self.size


def id_of(group: Group, total: int) -> int:
    """The device id of a group in a system of ``total`` IPUs: singles come first, then pairs, then fours ...

    >>> id_of(Group(3, 1), 64), id_of(Group(0, 2), 64), id_of(Group(0, 64), 64)
    (3, 64, 126)
    """
    return 2 * total - 2 * total // group.size + group.first // group.size


def group_of(device_id: int, total: int) -> Group:
    """The inverse of :func:`id_of`.

    >>> group_of(65, 64)
    Group(first=2, size=2)
    """
    size = 1
    while size < total and id_of(Group(0, 2 * size), total) <= device_id:
        size *= 2
    return Group((device_id - id_of(Group(0, size), total)) * size, size)


@dataclass
class Device:
    """A group of IPUs, attached until :meth:`release` is called or the owner is collected."""

    device_id: int
    ipus: int
    ticket: int = field(repr=False)
    _released: bool = field(default=False, repr=False)

    def release(self) -> None:
        """Make the IPUs free for others."""
        if not self._released:
            self._released = True
            _free(self.ticket)
            backend.debug("Detached from device %d", self.device_id)


def acquire(ipus: int, owner: object) -> Device:
    """Attach any ``ipus`` IPUs that are free in this process; they are freed with ``owner`` at the latest."""
    wanted = f"{ipus} IPU(s)"
    total = _total(wanted)
    if ipus > total:
        raise backend_error(
            f"Failed to acquire {wanted}: No device found on the system with {ipus} IPUs (it has {total})"
        )
    return _attach([Group(first, ipus) for first in range(0, total, ipus)], wanted, total, owner)


def acquire_id(device_id: int, owner: object) -> Device:
    """Attach the device with this id, as :func:`acquire` does."""
    wanted = f"device Id {device_id}"
    total = _total(wanted)
    return _attach([_existing(device_id, total)], wanted, total, owner)


def size_of(device_id: int) -> int:
    """How many IPUs the device has."""
    return _existing(device_id, _total(f"device Id {device_id}")).size


def suggestion(ipus: int) -> int | None:
    """The id of a device of exactly ``ipus`` IPUs, a free one if there is any; ``None`` if no device has so many.

    >>> suggestion(64), suggestion(3)
    (126, None)
    """
    machine = system()
    if machine is None or not machine.offers(ipus):
        return None
    groups = [Group(first, ipus) for first in range(0, machine.ipus, ipus)]
    with _changed:
        return id_of(_free_group(groups) or groups[0], machine.ipus)


def simulated(ipus: int) -> Device:
    """A device that occupies nothing: for the IPU Model, and for programs without any device operation."""
    return Device(0, ipus, next(_tickets))


def _total(wanted: str) -> int:
    machine = system()
    if machine is None:
        raise backend_error(f"Failed to acquire {wanted}: No IPU detected in the system")
    return machine.ipus


def _existing(device_id: int, total: int) -> Group:
    last = id_of(Group(0, total), total)
    if not 0 <= device_id <= last:
        raise backend_error(
            f"Failed to acquire device Id {device_id}: a system of {total} IPUs has the ids 0 to {last}"
        )
    return group_of(device_id, total)


def _attach(candidates: Sequence[Group], wanted: str, total: int, owner: object) -> Device:
    with _changed:
        group = _free_group(candidates)
        while group is None:
            if not environment.WAIT_FOR_IPU.read():
                raise _busy(wanted)
            backend.log(TRACE, "No IPU available, sleeping for %g seconds", POLL_SECONDS)
            _changed.wait(POLL_SECONDS)
            group = _free_group(candidates)
        ticket = next(_tickets)
        _in_use[ticket] = group
    device = Device(id_of(group, total), group.size, ticket)
    weakref.finalize(owner, _free, ticket)
    backend.info("Acquired %d IPU(s): running on device Id %d", group.size, device.device_id)
    backend.debug("Attached to device %d", device.device_id)
    return device


def _busy(wanted: str) -> Error:
    return backend_error(
        f"Failed to acquire {wanted}: all are in use. Detach or destroy another model first, or set "
        "POPTORCH_WAIT_FOR_IPU=1 to wait."
    )


def _free_group(candidates: Sequence[Group]) -> Group | None:
    return next((g for g in candidates if not any(g.overlaps(used) for used in _in_use.values())), None)


def _free(ticket: int) -> None:
    with _changed:
        if _in_use.pop(ticket, None) is not None:
            _changed.notify_all()
