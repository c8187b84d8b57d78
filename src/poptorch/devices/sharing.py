"""The IPUs of a system among processes: who has which, and who waits for what.

Each system has one file. All that matters is which of its bytes are locked, and by which process. The kernel keeps
that (``record_locks``), so nothing has to be cleaned up after a process that was killed.

- The first bytes are slots of 512, one for each IPU. The process that has locked a slot has the IPU. In the slot it
  writes who it is, for people to read. That text decides nothing: where it is wrong, the number of the process is left.
  A guard behind the slot keeps the IPU, if other code of the process opens and closes the file.
- The byte at ``_ONLY_WAIT`` plus the number of a process is locked while that process does nothing but wait for IPUs.
- A byte far beyond, from ``_QUEUE`` on, stands for a program that waits. Its position says since when, for which IPUs,
  and for how many of them. Programs that came earlier have lower positions.
"""

from __future__ import annotations

import functools
import json
import math
import os
import pwd
import stat
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

from poptorch import environment
from poptorch._logging import backend, warn_once
from poptorch.devices.groups import Group, group_of, id_of
from poptorch.devices.record_locks import END, LockFile, RangeLock
from poptorch.devices.system import System

_SLOT = 512
_QUEUE = 2**62
_ONLY_WAIT = 2**61
LAST_POSITION = END
"""The end of the queue."""

_LONGEST_COMMAND = 300
_ID_BITS, _SIZE_BITS = 9, 4
_MOST_WAITERS = 4096
"""A lock in the queue that is longer was made by another program than this one."""


@dataclass(frozen=True)
class Owner:
    """A process that has a device, and what is known about it."""

    device_id: int | None
    """``None``, if it is not known how the IPUs were attached."""

    ipus: range
    pid: int
    """0, if the process runs in another container."""

    command: str
    user: str | None
    since: float | None
    """Seconds since 1970."""

    @property
    def is_self(self) -> bool:
        """Whether it is this process."""
        return self.pid == os.getpid()

    def __str__(self) -> str:
        if self.is_self:
            who = "this process"
        elif self.pid:
            who = f"process {self.pid}"
        else:
            who = "a process in another container"
        since = "" if self.since is None else f" since {local_time(self.since)}"
        return f"{who} ({self.command}){since}"


def local_time(moment: float) -> str:
    """A moment in the words of people, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


@dataclass(frozen=True, order=True)
class Wish:
    """A program that waits."""

    position: int
    """Those who came earlier have lower ones."""

    pid: int

    def among(self, total: int) -> Group:
        """The IPUs among which it looks: one device, or the whole system."""
        number = (self.position >> _SIZE_BITS) % (1 << _ID_BITS)
        return group_of(min(number, 2 * total - 2), total)

    @property
    def ipus(self) -> int:
        """How many IPUs it wants."""
        return 1 << self.position % (1 << _SIZE_BITS)

    @property
    def seconds(self) -> float:
        """How long it has waited."""
        since = (self.position - _QUEUE) >> (_ID_BITS + _SIZE_BITS)
        return max(0.0, time.monotonic() - since / 1e6)


def first_position(among: Group, ipus: int, total: int) -> int:
    """The position in the queue of a program that comes now. All processes of a machine have the same clock."""
    now = time.monotonic_ns() // 1000
    kind = id_of(among, total) << _SIZE_BITS | ipus.bit_length() - 1
    return _QUEUE + (now << (_ID_BITS + _SIZE_BITS)) + kind


def later(position: int) -> int:
    """The next position with the same wish."""
    return position + (1 << (_ID_BITS + _SIZE_BITS))


class DeviceSharing(Protocol):
    """What a process asks of the others."""

    def take(self, group: Group) -> Owner | None:
        """Take IPUs, if no other process has one of them. The caller knows what this process has itself."""

    def give_back(self, group: Group) -> None:
        """Make IPUs free for others."""

    def owners(self) -> list[Owner]:
        """Which other processes have which devices."""

    def enlist(self, position: int) -> bool:
        """Wait at this position of the queue; false if another process does so."""

    def leave(self, position: int) -> None:
        """Do not wait any longer."""

    def wishes(self) -> list[Wish]:
        """What other processes wait for, in order."""

    def only_waits(self, so: bool) -> None:
        """Say whether this process does nothing but wait."""

    def that_only_wait(self) -> set[int]:
        """The numbers of other processes that do nothing but wait."""

    def keep(self, held: list[Group]) -> None:
        """Make sure that others see what this process has."""

    def close(self) -> None:
        """Give up everything."""


def myself(group: Group, total: int) -> Owner:
    """This process as an owner, from now on."""
    return Owner(id_of(group, total), group.ipus, os.getpid(), _own_command(), _user_name(), time.time())


class Alone:
    """There are no other processes, as far as this one knows."""

    def __init__(self, machine: System) -> None:
        self._total = machine.ipus

    def take(self, group: Group) -> Owner | None:
        return myself(group, self._total)

    def give_back(self, group: Group) -> None:
        pass

    def owners(self) -> list[Owner]:
        return []

    def enlist(self, position: int) -> bool:
        return True

    def leave(self, position: int) -> None:
        pass

    def wishes(self) -> list[Wish]:
        return []

    def only_waits(self, so: bool) -> None:
        pass

    def that_only_wait(self) -> set[int]:
        return set()

    def keep(self, held: list[Group]) -> None:
        pass

    def close(self) -> None:
        pass


class Together:
    """Processes that share a directory."""

    def __init__(self, machine: System, path: str) -> None:
        """``OSError`` if the directory cannot be used."""
        self._total, self._directory, self._name = machine.ipus, path, f"{machine.name}.ipus"
        self._file = self._opened()
        self._file.locked(0, END)  # some file systems have no locks

    def _opened(self) -> LockFile:
        mode = _prepared(self._directory)
        return LockFile(os.path.join(self._directory, self._name), mode)

    def take(self, group: Group) -> Owner | None:
        slots = _slots(group.ipus)
        if not self._file.guard(*slots):
            return None
        if not self._file.lock(*slots):
            self._file.unguard(*slots)
            return None
        owner = myself(group, self._total)
        try:
            self._file.write(group.first * _SLOT, _written(owner) * group.size)
        except OSError as problem:  # the lock is what counts
            path = self._file.path
            warn_once(("slot", path), f"Other programs cannot see who has which IPUs: {path}: {problem}")
        return owner

    def give_back(self, group: Group) -> None:
        self._file.unlock(*_slots(group.ipus))
        self._file.unguard(*_slots(group.ipus))

    def owners(self) -> list[Owner]:
        found: list[Owner] = []
        locks = self._file.locked(0, self._total * _SLOT)
        for lock in sorted([*locks, *_without(self._file.guarded(0, self._total * _SLOT), locks)]):
            # Adjacent locks of one process are one lock for the kernel; the slots tell them apart.
            for ipu in _ipus(lock):
                owner, last = self._owner(ipu, lock.pid), found[-1] if found else None
                if last is not None and last == replace(owner, ipus=last.ipus) and last.ipus.stop == ipu:
                    found[-1] = replace(owner, ipus=range(last.ipus.start, ipu + 1))
                else:
                    found.append(owner)
        return found

    def _owner(self, ipu: int, pid: int) -> Owner:
        """Who has an IPU: the kernel's word, and what stands in the slot if it agrees with that."""
        ipus, told = range(ipu, ipu + 1), owner_in(self._file.read(ipu * _SLOT, _SLOT))
        if told is None or (told.pid != pid and pid != 0):
            return Owner(None, ipus, pid, _command_of(pid), None, None)
        device = told.device_id
        fits = device is not None and device <= 2 * self._total - 2 and ipu in group_of(device, self._total).ipus
        return replace(told, device_id=device if fits else None, ipus=ipus, pid=pid)

    def enlist(self, position: int) -> bool:
        return self._file.lock(position, position + 1)

    def leave(self, position: int) -> None:
        self._file.unlock(position, position + 1)

    def wishes(self) -> list[Wish]:
        locks = self._file.locked(_QUEUE, END)
        ours = [lock for lock in locks if lock.stop - lock.start < _MOST_WAITERS]
        return [Wish(position, lock.pid) for lock in ours for position in range(lock.start, lock.stop)]

    def only_waits(self, so: bool) -> None:
        byte = _ONLY_WAIT + os.getpid()
        (self._file.lock if so else self._file.unlock)(byte, byte + 1)

    def that_only_wait(self) -> set[int]:
        locks = self._file.locked(_ONLY_WAIT, _QUEUE)
        # What is longer was locked by another program than this one.
        return {lock.pid for lock in locks if lock.stop - lock.start == 1 and lock.pid == lock.start - _ONLY_WAIT}

    def keep(self, held: list[Group]) -> None:
        """A new file takes the place of one that was removed, for instance by a program that tidies up."""
        if self._file.is_in_place():
            for group in held:  # other code of this process may have closed the file: then the guard is left
                self._file.lock(*_slots(group.ipus))
            return
        backend.info("%s was removed; a new one takes its place", self._file.path)
        removed, self._file = self._file, self._opened()
        removed.close()
        for group in held:
            self.take(group)

    def close(self) -> None:
        self._file.close()


def _without(guards: list[RangeLock], locks: list[RangeLock]) -> list[RangeLock]:
    """Guards of IPUs that have no lock any more: other code of their process has closed the file."""
    known = {ipu for lock in locks for ipu in _ipus(lock)}
    alone = [ipu for guard in guards for ipu in _ipus(guard) if ipu not in known]
    return [RangeLock(ipu * _SLOT, (ipu + 1) * _SLOT, 0) for ipu in alone]


def _ipus(lock: RangeLock) -> range:
    return range(lock.start // _SLOT, -(-lock.stop // _SLOT))


def _slots(ipus: range) -> tuple[int, int]:
    return ipus.start * _SLOT, ipus.stop * _SLOT


# -- what owners say about themselves --------------------------------------------------------------------------------


def _written(owner: Owner) -> bytes:
    """The content of a slot: one line of JSON, and blanks."""
    fields: dict[str, Any] = {"pid": owner.pid, "device": owner.device_id, "since": owner.since, "user": owner.user}
    for length in (_LONGEST_COMMAND, 200, 100, 70, 0):  # letters take up to four bytes
        record = {**fields, "command": owner.command[:length]}
        text = json.dumps(record, ensure_ascii=False).encode(errors="replace")
        if len(text) < _SLOT:
            break
    return text[: _SLOT - 1].ljust(_SLOT - 1) + b"\n"


def owner_in(content: bytes) -> Owner | None:
    """What a slot says; ``None`` if that is nothing that this package wrote."""
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    pid, device, since = told.get("pid"), told.get("device"), told.get("since")
    command, user = told.get("command"), told.get("user")
    if type(pid) is not int or not isinstance(command, str):
        return None
    return Owner(
        device if type(device) is int and device >= 0 else None,
        range(0),
        pid,
        _readable(command),
        _readable(user) if isinstance(user, str) else None,
        float(since) if isinstance(since, int | float) and _is_moment(since) else None,
    )


def _is_moment(since: float) -> bool:
    return math.isfinite(since) and 0 <= since <= 2**33


def _readable(text: str) -> str:
    """Text that can do nothing to a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _command_of(pid: int) -> str:
    """What the system knows about a process that did not say what it is."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return _readable(file.read(4096).replace(b"\0", b" ").decode(errors="replace").strip()) or "unknown"
    except OSError:
        return "unknown"


@functools.cache
def _own_command() -> str:
    return _readable(" ".join(sys.orig_argv))[:_LONGEST_COMMAND]  # as others see it


@functools.cache
def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


# -- where -----------------------------------------------------------------------------------------------------------


def directory() -> str:
    """Where the files are: the user's choice, or a folder of the user's own in the folder for temporary files."""
    chosen = environment.DEVICES_DIR.read()
    return os.path.realpath(chosen or os.path.join(tempfile.gettempdir(), f"poptorch-devices-{os.geteuid()}"))


def join(machine: System, path: str) -> DeviceSharing:
    """Share a system with the processes that use the same directory. If it cannot be used, a warning says why."""
    try:
        return Together(machine, path)
    except OSError as problem:
        return alone(machine, path, problem)


def alone(machine: System, path: str, problem: OSError) -> Alone:
    """Go on without the other processes; a warning says so."""
    warn_once(
        ("devices", path),
        f"The IPUs of {machine.name} are not locked for other processes, only within this one: {path} cannot be used: "
        f"{problem}. Set {environment.DEVICES_DIR.name} to a directory that you can write to.",
    )
    return Alone(machine)


def _prepared(path: str) -> int:
    """Make the directory if need be; returns the permissions of files in it, which are those of the directory."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    status = os.stat(path)
    chosen = environment.DEVICES_DIR.read() is not None  # then the user knows who else can write to it
    if not chosen and status.st_uid != os.geteuid():
        raise OSError("it belongs to another user")
    if not chosen and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError("other users can write to it")
    return 0o600 | status.st_mode & 0o066
