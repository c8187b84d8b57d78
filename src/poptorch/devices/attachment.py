"""Virtual IPUs: which of them are in use, and by whom.

IPUs in use are locked within this process by a table here, and for other processes by :mod:`poptorch.devices.sharing`.
"""

from __future__ import annotations

import gc
import itertools
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from poptorch import environment
from poptorch._logging import TRACE, backend
from poptorch.devices import cycles, sharing, waiting
from poptorch.devices.groups import Group, group_of, groups_of, id_of
from poptorch.devices.sharing import Owner, Wish
from poptorch.devices.system import System, system
from poptorch.errors import DeviceBusyError, Error, backend_error

POLL_SECONDS = 0.2
"""How long a program that waits sleeps before it looks again for what other processes have freed. A look takes some
microseconds; what this process frees itself ends the sleep at once."""

_LOOKS = 3
"""How many times in a row it must look as if programs waited for each other, while they come and go meanwhile."""

_changed = threading.Condition(threading.RLock())  # re-entrant: a collected owner may free its IPUs at any point
_tickets = itertools.count()


_Answer = TypeVar("_Answer")


class _Ledger:
    """Who uses the IPUs of one system. All methods need ``_changed``."""

    def __init__(self, machine: System, path: str) -> None:
        self._machine, self._path = machine, path
        self.total = machine.ipus
        self.shared = sharing.join(machine, path)
        self.in_use: dict[int, tuple[Group, Owner]] = {}
        """What this process has, by the ticket of its owner."""

        self.given_up: list[sharing.DeviceSharing] = []
        """What this process shared with others before that went wrong; it may still have locks there."""

        self.waiting: dict[int, int] = {}
        """The threads of this process that wait, by their positions in the queue."""

    def take(self, candidates: Iterable[Group], reserved: Sequence[Group] = ()) -> tuple[int, Group] | None:
        """Take the first group that is free and has no IPU of ``reserved``, with a new ticket."""
        taken = self._taken()
        self._ask(lambda shared: shared.keep(taken))
        for group in candidates:
            if any(group.overlaps(other) for other in (*taken, *reserved)):
                continue
            owner: Owner | None = self._ask(operator.methodcaller("take", group))
            if owner is not None:
                ticket = next(_tickets)
                self.in_use[ticket] = group, owner
                return ticket, group
        return None

    def _ask(self, question: Callable[[sharing.DeviceSharing], _Answer]) -> _Answer:
        """What the other processes say. Where their file cannot be used any more, this one goes on alone.

        The file stays open: its locks, as far as they hold, keep others away from what this process has.
        """
        try:
            return question(self.shared)
        except OSError as problem:
            self.given_up.append(self.shared)
            self.shared = sharing.alone(self._machine, self._path, problem)
            return question(self.shared)

    def _taken(self) -> list[Group]:
        # A copy: whatever allocates memory may collect an owner, which frees its IPUs.
        return [group for group, _ in list(self.in_use.values())]

    def free(self, ticket: int) -> None:
        """Give back what belongs to a ticket, if it has something."""
        group, _ = self.in_use.pop(ticket, (None, None))
        if group is not None:
            self._ask(lambda shared: shared.give_back(group))
            _changed.notify_all()

    def enlist(self, candidates: Sequence[Group]) -> int:
        """Join the queue; returns the position."""
        among = candidates[0] if len(candidates) == 1 else Group(0, self.total)
        position = sharing.first_position(among, candidates[0].size, self.total)
        while position in self.waiting or not self._ask(operator.methodcaller("enlist", position)):
            position = sharing.later(position)
        self.waiting[position] = threading.get_ident()
        return position

    def leave(self, position: int) -> None:
        """Leave the queue."""
        del self.waiting[position]
        self._ask(lambda shared: shared.leave(position))
        _changed.notify_all()

    def wishes(self) -> list[Wish]:
        """Who waits, in this process and in others, in order."""
        mine = [Wish(position, os.getpid()) for position in self.waiting]
        return sorted([*self._ask(lambda shared: shared.wishes()), *mine])

    def before(self, position: int) -> list[Wish]:
        """Who is served before the one at this position.

        A process that has IPUs does not stand in line after other processes: they may be waiting for what it has.
        """
        earlier = [wish for wish in self.wishes() if wish.position < position]
        return [wish for wish in earlier if wish.position in self.waiting] if self.in_use else earlier

    def reserved(self, position: int) -> list[Group]:
        """The IPUs that those before this position look at."""
        return [wish.among(self.total) for wish in self.before(position)]

    def should_give_up(self) -> bool:
        """Whether processes wait for each other's IPUs, and this one has to end that.

        Others see whether this process does nothing but wait.
        """
        idle = bool(self.in_use) and not waiting.other_threads_can_act(self.waiting.values())
        self.shared.only_waits(idle)
        if not idle:
            return False
        only_wait = {os.getpid(), *self.shared.that_only_wait()}
        return cycles.victim(self.owners(), self.wishes(), only_wait, self.total) == os.getpid()

    def owners(self) -> list[Owner]:
        """Who has which devices, in this process and in others, in the order of their IPUs."""
        mine = [owner for _, owner in list(self.in_use.values())]
        return sorted([*mine, *self._ask(lambda shared: shared.owners())], key=lambda owner: owner.ipus.start)

    def is_own(self, candidates: Sequence[Group]) -> bool:
        """Whether each candidate has an IPU that this process has itself."""
        taken = self._taken()
        return all(any(group.overlaps(other) for other in taken) for group in candidates)


_ledgers: dict[tuple[str, System], _Ledger] = {}


def _ledger(machine: System) -> _Ledger:
    key = sharing.directory(), machine
    if key not in _ledgers:
        _ledgers[key] = _Ledger(machine, key[0])
    return _ledgers[key]


@dataclass
class Device:
    """A group of IPUs, attached until :meth:`release` is called or the owner is collected."""

    device_id: int
    ipus: int
    _ticket: int = field(default=-1, repr=False)
    _ledger: _Ledger | None = field(default=None, repr=False)
    """``None`` for a device that occupies nothing, and after its release."""

    def release(self) -> None:
        """Make the IPUs free for others."""
        if self._ledger is not None:
            _free(self._ledger, self._ticket)
            backend.debug("Detached from device %d", self.device_id)
        self._ledger = None


def acquire(ipus: int, owner: object) -> Device:
    """Attach any ``ipus`` IPUs that no process uses; they are freed with ``owner`` at the latest."""
    wanted = f"{ipus} IPU(s)"
    machine = _present(wanted)
    if ipus > machine.ipus:
        raise backend_error(
            f"Failed to acquire {wanted}: No device found on the system with {ipus} IPUs (it has {machine.ipus})",
            kind=DeviceBusyError,
        )
    return _attach(groups_of(ipus, machine.ipus), wanted, machine, owner)


def acquire_id(device_id: int, owner: object) -> Device:
    """Attach the device with this id, as :func:`acquire` does."""
    wanted = f"device Id {device_id}"
    machine = _present(wanted)
    return _attach([_existing(device_id, machine.ipus)], wanted, machine, owner)


def size_of(device_id: int) -> int:
    """How many IPUs the device has."""
    return _existing(device_id, _present(f"device Id {device_id}").ipus).size


def suggestion(ipus: int) -> int | None:
    """The id of a device of exactly ``ipus`` IPUs, a free one if there is any; ``None`` if no device has so many.

    >>> suggestion(64), suggestion(3)
    (126, None)
    """
    machine = system()
    if machine is None or not machine.offers(ipus):
        return None
    groups, taken = groups_of(ipus, machine.ipus), owners()
    free = (group for group in groups if not any(set(group.ipus) & set(owner.ipus) for owner in taken))
    return id_of(next(free, groups[0]), machine.ipus)


def simulated(ipus: int) -> Device:
    """A device that occupies nothing: for the IPU Model, and for programs without any device operation."""
    return Device(0, ipus)


def owners() -> list[Owner]:
    """Who has devices of this machine's system, in the order of their IPUs.

    >>> all(owner.pid for owner in owners())
    True
    """
    machine = system()
    if machine is None:
        return []
    with _changed:
        return _ledger(machine).owners()


def wishes() -> list[Wish]:
    """Who waits for devices of this machine's system, in order.

    >>> all(wish.ipus >= 1 for wish in wishes())
    True
    """
    machine = system()
    if machine is None:
        return []
    with _changed:
        return _ledger(machine).wishes()


def _present(wanted: str) -> System:
    machine = system()
    if machine is None:
        raise backend_error(f"Failed to acquire {wanted}: No IPU detected in the system", kind=DeviceBusyError)
    return machine


def _existing(device_id: int, total: int) -> Group:
    last = id_of(Group(0, total), total)
    if not 0 <= device_id <= last:
        raise backend_error(
            f"Failed to acquire device Id {device_id}: a system of {total} IPUs has the ids 0 to {last}",
            kind=DeviceBusyError,
        )
    return group_of(device_id, total)


def _attach(candidates: Sequence[Group], wanted: str, machine: System, owner: object) -> Device:
    waits = environment.WAIT_FOR_IPU.read()
    with _changed:
        ledger = _ledger(machine)
        found = ledger.take(candidates, ledger.reserved(sharing.LAST_POSITION) if waits else ())
    if found is None:
        gc.collect()  # models that the program has dropped may still have IPUs
        with _changed:
            found = _awaited(ledger, candidates, wanted) if waits else ledger.take(candidates)
            if found is None:
                raise _busy(ledger, candidates, wanted)
    ticket, group = found
    device = Device(id_of(group, ledger.total), group.size, ticket, ledger)
    weakref.finalize(owner, _free, ledger, ticket)
    backend.info("Acquired %d IPU(s): running on device Id %d", group.size, device.device_id)
    backend.debug("Attached to device %d", device.device_id)
    return device


def _awaited(ledger: _Ledger, candidates: Sequence[Group], wanted: str) -> tuple[int, Group]:
    """Wait for a turn, and then for a free device. Needs ``_changed``, and lets go of it while it sleeps."""
    position = ledger.enlist(candidates)
    try:
        said, doomed = False, 0
        while (found := ledger.take(candidates, ledger.reserved(position))) is None:
            own = ledger.is_own(candidates)
            if own and not waiting.other_threads_can_act(ledger.waiting.values()):
                raise _endless(ledger, candidates, wanted)
            doomed = doomed + 1 if ledger.should_give_up() else 0
            if doomed == _LOOKS:
                raise _cycle(ledger, candidates, wanted)
            if not said:
                said = True
                text = waiting.announcement(wanted, _in_the_way(ledger, candidates), len(ledger.before(position)), own)
                (backend.warning if own else backend.info)("%s", text)
            backend.log(TRACE, "No IPU available, sleeping for %g seconds", POLL_SECONDS)
            _changed.wait(POLL_SECONDS)
    finally:
        ledger.leave(position)
        ledger.shared.only_waits(False)
    return found


def _in_the_way(ledger: _Ledger, candidates: Sequence[Group]) -> list[Owner]:
    """Who has IPUs of the candidates."""
    wanted = {ipu for group in candidates for ipu in group.ipus}
    return [owner for owner in ledger.owners() if wanted & set(owner.ipus)]


def _busy(ledger: _Ledger, candidates: Sequence[Group], wanted: str) -> Error:
    holders = waiting.listed(_in_the_way(ledger, candidates))
    return backend_error(
        f"Failed to acquire {wanted}: every suitable device is in use, by {holders}. Detach or destroy another model "
        "first, or set POPTORCH_WAIT_FOR_IPU=1 to wait.",
        kind=DeviceBusyError,
    )


def _endless(ledger: _Ledger, candidates: Sequence[Group], wanted: str) -> Error:
    holders = waiting.listed([owner for owner in _in_the_way(ledger, candidates) if owner.is_self])
    return backend_error(
        f"Failed to acquire {wanted}: every suitable device is in use, by {holders}. POPTORCH_WAIT_FOR_IPU is set, but "
        "this process would wait for itself: it has no other thread that could free them. Detach or destroy another "
        "model first.",
        kind=DeviceBusyError,
    )


def _cycle(ledger: _Ledger, candidates: Sequence[Group], wanted: str) -> Error:
    holders = waiting.listed([owner for owner in _in_the_way(ledger, candidates) if not owner.is_self])
    mine = waiting.listed([owner for owner in ledger.owners() if owner.is_self])
    return backend_error(
        f"Failed to acquire {wanted}: programs wait for each other's IPUs, and none of them would ever go on. What "
        f"process {os.getpid()} wants is in use by {holders}, and others wait for what it has itself: {mine}. Attach "
        "IPUs in the same order in all programs, or detach a model before waiting for another device.",
        kind=DeviceBusyError,
    )


def _free(ledger: _Ledger, ticket: int) -> None:
    with _changed:
        ledger.free(ticket)


def _forget_parent() -> None:
    """In a forked process: IPUs belong to the parent, and so does its place in the queue."""
    global _changed
    _changed = threading.Condition(threading.RLock())  # a thread of the parent may have had the other one
    for ledger in _ledgers.values():
        ledger.in_use.clear()
        ledger.waiting.clear()
        for shared in (ledger.shared, *ledger.given_up):
            shared.close()  # closing gives up locks of this process only, and it has none
    _ledgers.clear()


os.register_at_fork(after_in_child=_forget_parent)
