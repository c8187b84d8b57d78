"""One of several processes compiles a model, while the others wait to find it in the cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from poptorch import environment, launchers
from poptorch._logging import logger

_POLL_SECONDS = 0.05
STOPPED_SECONDS = 10.0
"""How long the one that compiles may be halted, before others go on without it."""

_SAYING_SECONDS = 10.0
"""When it is said who is waited for."""

_LONGEST = 100


class NotInTime(Exception):
    """The process that compiles does not come to an end."""


@contextlib.contextmanager
def locked(path: Path, processes: int) -> Iterator[None]:
    """Hold the lock of a file; ``OSError`` where there can be no lock, :class:`NotInTime` where others keep it.

    The system releases the lock of a process that dies. The last of the processes to come takes the file away.
    """
    descriptor = _locked(path)
    logger.debug("cache file locked: %s", path)
    came = _count(descriptor) + 1
    try:
        _write(descriptor, f"{came - 1} {os.getpid()} {launchers.start_time(os.getpid())}")
        yield
    finally:
        if came >= processes:
            path.unlink(missing_ok=True)
        else:
            _write(descriptor, str(came))
        os.close(descriptor)
        logger.debug("released the cache lock: %s", path)


def _locked(path: Path) -> int:
    """A descriptor of the lock file, locked."""
    patience = _Patience(path)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{path} is not a regular file")
            while not _took(descriptor):
                patience.check(_holder(descriptor))
                time.sleep(_POLL_SECONDS)
            # The owner may have removed the file: then others use a new one.
            if path.exists() and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _took(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Patience:
    """How long a process waits for the one that compiles, and what it says meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since = time.monotonic()
        self._stopped_since: float | None = None
        self._said = False

    def check(self, holder: tuple[int, str] | None) -> None:
        """Look at the process that has the lock, as far as it is known."""
        now, limit = time.monotonic(), float(max(1, environment.DISTRIBUTED_TIMEOUT.read()))
        who = "another process" if holder is None else f"process {holder[0]}"
        if not self._said and now - self._since > _SAYING_SECONDS:
            self._said = True
            logger.info("Waiting for %s, which compiles the model: it has locked %s", who, self._path)
        stopped = holder is not None and _is_stopped(*holder)
        self._stopped_since = (self._stopped_since or now) if stopped else None
        if self._stopped_since is not None and now - self._stopped_since > min(STOPPED_SECONDS, limit):
            raise NotInTime(f"{who}, which compiles it and has locked {self._path}, is stopped")
        if now - self._since > limit:
            raise NotInTime(
                f"{who} has kept {self._path} locked for {limit:g} s ({environment.DISTRIBUTED_TIMEOUT.name})"
            )


def _is_stopped(pid: int, started: str) -> bool:
    return launchers.state_of(pid) in ("T", "t") and launchers.start_time(pid) == started


def _holder(descriptor: int) -> tuple[int, str] | None:
    """The process that has written itself into the file."""
    _, *rest = os.pread(descriptor, _LONGEST, 0).decode(errors="replace").split(" ")
    if len(rest) == 2 and rest[0].isascii() and rest[0].isdigit():
        return int(rest[0]), rest[1]
    return None


def _count(descriptor: int) -> int:
    """How many came; what is no number was not written by us, and counts for none."""
    text = os.pread(descriptor, _LONGEST, 0).partition(b" ")[0]
    return int(text) if text.isdigit() else 0


def _write(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk: the lock is what counts
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
