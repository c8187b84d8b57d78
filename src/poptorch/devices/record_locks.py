"""Locks of byte ranges of a file, as the kernel keeps them between processes.

These locks (``F_SETLK``) belong to a process. They end with it, however it ends, and a forked child does not have them.
A range is locked as a whole or not at all. The kernel says which process holds a range (``F_GETLK``).

Two things to know. A process does not see its own locks. And it loses *all* of its locks on a file when it closes *any*
descriptor of that file. So a process must have one descriptor for each file and keep it.

Other code of the process may open and close the file, though: to copy the folder, for instance. Locks of another kind
(``F_OFD_SETLK``) belong to a descriptor, not to the process, and stay. But the kernel does not say who has them. So
there are guards: such locks on bytes far behind those of the range.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys
from typing import NamedTuple

END = 2**63 - 1
"""The last byte that can be locked."""

_GUARDS = 2**61
"""How far behind its range a guard is."""

_OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_OFD_GETLK: int | None = getattr(fcntl, "F_OFD_GETLK", None)
"""Where the kernel has locks of descriptors."""


class RangeLock(NamedTuple):
    """A range that another process has locked, from byte ``start`` up to and without ``stop``."""

    start: int
    stop: int
    pid: int
    """0, if the process cannot be seen from here, because it runs in another container."""


class _Fields(NamedTuple):
    """What ``struct flock`` holds."""

    kind: int
    start: int
    length: int
    pid: int


if sys.platform == "darwin":
    _FLOCK = struct.Struct("qqihh")

    def _packed(kind: int, start: int, length: int) -> bytes:
        return _FLOCK.pack(start, length, 0, kind, os.SEEK_SET)

    def _unpacked(content: bytes) -> _Fields:
        start, length, pid, kind, _ = _FLOCK.unpack(content)
        return _Fields(kind, start, length, pid)
else:
    _FLOCK = struct.Struct("hhqqi4x")

    def _packed(kind: int, start: int, length: int) -> bytes:
        return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)

    def _unpacked(content: bytes) -> _Fields:
        kind, _, start, length, pid = _FLOCK.unpack(content)
        return _Fields(kind, start, length, pid)


class LockFile:
    """A file with locked ranges. A process must not have two of these, or any other descriptor, for one file."""

    def __init__(self, path: str, mode: int) -> None:
        """Open the file, or make it with these permissions; ``OSError`` if that cannot be."""
        self.path = path
        self._descriptor = _opened(path, mode)
        self._has_guards = _OFD_SETLK is not None and _OFD_GETLK is not None

    def guard(self, start: int, stop: int) -> bool:
        """Guard a range; false if another process does. Where there are no guards, all ranges count as guarded."""
        return self._guarded(fcntl.F_WRLCK, start, stop)

    def unguard(self, start: int, stop: int) -> None:
        """Give up a guard."""
        self._guarded(fcntl.F_UNLCK, start, stop)

    def _guarded(self, kind: int, start: int, stop: int) -> bool:
        if not self._has_guards or _OFD_SETLK is None:
            return True
        try:
            fcntl.fcntl(self._descriptor, _OFD_SETLK, _packed(kind, _GUARDS + start, stop - start))
        except (BlockingIOError, PermissionError):
            return False
        except OSError as problem:
            if problem.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            self._has_guards = False  # an old kernel, or a file system that knows only the other kind
        return True

    def guarded(self, start: int, stop: int) -> list[RangeLock]:
        """What others guard of a range. Nobody knows who they are."""
        if not self._has_guards or _OFD_GETLK is None:
            return []
        found = self._locked(_OFD_GETLK, _GUARDS + start, _GUARDS + stop)
        return [RangeLock(lock.start - _GUARDS, lock.stop - _GUARDS, lock.pid) for lock in found]

    def lock(self, start: int, stop: int) -> bool:
        """Lock a range; false, and nothing is locked, if another process has a part of it."""
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETLK, _packed(fcntl.F_WRLCK, start, stop - start))
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: systems differ
            return False
        return True

    def unlock(self, start: int, stop: int) -> None:
        """Give up a range."""
        fcntl.fcntl(self._descriptor, fcntl.F_SETLK, _packed(fcntl.F_UNLCK, start, stop - start))

    def locked(self, start: int, stop: int) -> list[RangeLock]:
        """What other processes have locked of a range, in order; ranges are cut off at its ends."""
        return self._locked(fcntl.F_GETLK, start, stop)

    def _locked(self, question: int, start: int, stop: int) -> list[RangeLock]:
        found, gaps = [], [(start, stop)]
        while gaps:
            low, high = gaps.pop()
            if low >= high:
                continue
            asked = _packed(fcntl.F_WRLCK, low, high - low)
            lock = _unpacked(fcntl.fcntl(self._descriptor, question, asked))
            if lock.kind == fcntl.F_UNLCK:
                continue
            first = max(low, lock.start)
            after = high if lock.length == 0 else min(high, lock.start + lock.length)  # 0: to the end of all files
            found.append(RangeLock(first, after, max(lock.pid, 0)))
            # The kernel tells of one lock, which need not be the first.
            gaps += [(low, first), (after, high)]
        return sorted(found)

    def read(self, start: int, count: int) -> bytes:
        """The bytes that are there of a range."""
        return os.pread(self._descriptor, count, start)

    def write(self, start: int, content: bytes) -> None:
        """Overwrite a range."""
        os.pwrite(self._descriptor, content, start)

    def is_in_place(self) -> bool:
        """Whether processes that open the path now get this file."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Give up all ranges."""
        os.close(self._descriptor)


def _opened(path: str, mode: int) -> int:
    # Without waiting for the other end of a pipe, and without following a link to elsewhere.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # First without O_CREAT: Linux may refuse it for files of other users in a directory that all can write to.
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, mode)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, mode)  # the umask may have taken some of it
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor
