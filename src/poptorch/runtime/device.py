"""Virtual IPUs: which of them are in use, and by whom."""

from __future__ import annotations

import itertools
import threading
import weakref
from dataclasses import dataclass, field

from poptorch._logging import backend
from poptorch.errors import backend_error
from poptorch.runtime.system import system

_lock = threading.Lock()
_in_use: dict[int, tuple[int, int]] = {}
"""First IPU and number of IPUs of each device in use, by the ticket of its owner."""

_tickets = itertools.count()


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


def acquire(ipus: int, device_id: int | None, owner: object) -> Device:
    """Attach ``ipus`` IPUs that nobody in this process uses; they are freed with ``owner`` at the latest."""
    machine = system()
    total = machine.ipus if machine is not None else 0
    with _lock:
        first = _choose(ipus, device_id, total)
        ticket = next(_tickets)
        _in_use[ticket] = (first, ipus)
    device = Device(first, ipus, ticket)
    weakref.finalize(owner, _free, ticket)
    backend.info("Acquired %d IPU(s): running on device Id %d", ipus, device.device_id)
    backend.debug("Attached to device %d", device.device_id)
    return device


def simulated(ipus: int) -> Device:
    """A device that occupies nothing: for the IPU Model, and for programs without any device operation."""
    return Device(-1, ipus, next(_tickets))


def _free(ticket: int) -> None:
    with _lock:
        _in_use.pop(ticket, None)


def _choose(ipus: int, device_id: int | None, total: int) -> int:
    wanted = f"device Id {device_id}" if device_id is not None else f"{ipus} IPU(s)"
    if total == 0:
        raise backend_error(f"Failed to acquire {wanted}: No IPU detected in the system")
    if ipus > total:
        raise backend_error(
            f"Failed to acquire {wanted}: No device found on the system with {ipus} IPUs (it has {total})"
        )
    starts = [device_id] if device_id is not None else range(0, total, ipus)
    for first in starts:
        if first + ipus <= total and not any(_overlaps(first, ipus, f, n) for f, n in _in_use.values()):
            return first
    raise backend_error(f"Failed to acquire {wanted}: all are in use. Detach or destroy another model first.")


def _overlaps(first: int, count: int, other: int, other_count: int) -> bool:
    return first < other + other_count and other < first + count
