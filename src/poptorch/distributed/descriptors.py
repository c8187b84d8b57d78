"""Memory that a process of this host hands to others: the file itself, and no name by which to open one.

The system says who is at the other end of a Unix socket. What comes from a process of another user, or from one that is
not of the job, is dropped; what comes from one of the job must be memory that can neither shrink nor grow.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import resource
import secrets
import socket
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence

from poptorch.errors import createPoptorchError

_CREDENTIALS = struct.Struct("iII")
"""Process, user and group."""

_NAME_BYTES = 16
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
SECONDS = 30.0
"""How long processes may take to hand over what they have. All of them are about to do so when one begins to wait."""


_OTHER_FILES = 128
"""What a process may have open besides connections, and will open later: data, libraries, logs."""


def reserve(processes: int, what: str) -> None:
    """Make sure that a process may have connections to so many others: raise its own limit, or say what is needed.

    Gloo ends a process that has no descriptors left.
    """
    try:
        now = len(os.listdir("/proc/self/fd"))
    except OSError:
        now = _OTHER_FILES
    needed = now + 2 * processes + _OTHER_FILES  # a connection and the memory of each
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft < needed:
        raise createPoptorchError(
            f"This process needs {needed} descriptors (open files and connections) for {what}, and may have {soft}. "
            f"Raise the limit before the job starts: ulimit -n {needed}, or LimitNOFILE= of a systemd unit."
        )


class Counter:
    """Where this process takes files from others, at a name that nobody can guess."""

    def __init__(self, backlog: int) -> None:
        self.name = secrets.token_hex(_NAME_BYTES)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(_address(self.name))
        self._listening.listen(backlog)

    def close(self) -> None:
        """Take nothing more."""
        self._listening.close()

    def take(self, pids: Sequence[int]) -> dict[int, int]:
        """One file from each of these processes."""
        found: dict[int, int] = {}
        deadline = time.monotonic() + SECONDS
        try:
            while len(found) < len(pids):
                left = deadline - time.monotonic()
                if left <= 0:  # whoever keeps on connecting does not prolong the wait
                    raise TimeoutError
                self._listening.settimeout(left)
                connection, _ = self._listening.accept()
                with connection:
                    pid = _process_at(connection)
                    if pid is not None and pid in pids and pid not in found:
                        connection.settimeout(max(1e-3, deadline - time.monotonic()))
                        found[pid] = _received(connection)
        except BaseException as error:
            for file in found.values():
                os.close(file)
            if isinstance(error, TimeoutError):
                missing = ", ".join(str(pid) for pid in pids if pid not in found)
                raise OSError(f"nothing came from process {missing} within {SECONDS:g} s") from error
            raise
        return found


def check_name(name: object, pid: int) -> None:
    """Refuse what a process says if it is not the name of a counter."""
    if not isinstance(name, str) or len(name) != 2 * _NAME_BYTES or not all(c in "0123456789abcdef" for c in name):
        raise OSError(f"process {pid} takes files at {str(name)[:50]!r}, which is no name for that")


def hand_over(file: int, name: str, pid: int) -> None:
    """Give a process a file, at the name that it has told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS)
        connection.connect(_address(name))
        if _process_at(connection) != pid:
            raise OSError(f"somebody else takes the files for process {pid}")
        socket.send_fds(connection, [b"f"], [file])


def sealed_memory(name: str, size: int) -> int:
    """New memory, as a file whose size stays as it is."""
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.truncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(file)
        raise
    return file


def check_memory(file: int, size: int, pid: int) -> None:
    """Refuse what is not such memory: a file that shrinks ends the process that has it mapped."""
    about = os.fstat(file)
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if not stat.S_ISREG(about.st_mode) or seals & _SEALS != _SEALS:
        raise OSError(f"what process {pid} shares is not memory that keeps its size")
    if about.st_size != size:
        raise OSError(f"process {pid} shares {about.st_size} bytes, not {size}")


@contextlib.contextmanager
def all_files(own: int, counter: Counter, names: Mapping[int, str]) -> Iterator[dict[int, int]]:
    """The files of all processes, which are known by their numbers and the names that they told; closed at the end."""
    for pid, name in names.items():
        check_name(name, pid)  # all have the same names, so all go on or none does
    others = [pid for pid in names if pid != os.getpid()]
    for pid in others:
        hand_over(own, names[pid], pid)
    taken = counter.take(others)
    try:
        yield {os.getpid(): own, **taken}
    finally:
        for file in taken.values():
            os.close(file)


def _address(name: str) -> bytes:
    return b"\0poptorch-" + name.encode()


def _process_at(connection: socket.socket) -> int | None:
    """The process at the other end; ``None`` if it is of another user."""
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(said)
    return int(pid) if user == os.geteuid() else None


def _received(connection: socket.socket) -> int:
    _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(4 * array.array("i").itemsize))
    files = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    for extra in files[1:]:
        os.close(extra)
    if not files:
        raise OSError("a process has sent no file")
    os.set_inheritable(files[0], False)
    return files[0]
