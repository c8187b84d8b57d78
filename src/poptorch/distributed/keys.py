"""The keys of a job, as a process sees them that has come to the meeting point.

Every call has a limit: where no answer comes in time, :class:`Unreachable` says so. An answer that comes later is known
by its number, and dropped.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from poptorch.distributed import frames, proof
from poptorch.distributed.meeting_point import ENDED

CALL_SECONDS = 10.0
"""How long an answer may take, where nothing else is said."""

_GREETING_SECONDS = 15.0
"""How long who listens may take to say who it is."""

_POLL_SECONDS = 0.005
_LONGEST_POLL_SECONDS = 0.1
_CHUNK = 1 << 16


class Unreachable(RuntimeError):
    """The meeting point does not answer."""


class Connection:
    """The way to the meeting point, for all threads of a process."""

    def __init__(self, host: str, port: int, secret: bytes, seconds: float) -> None:
        self.has_ended = False
        """Whether the other end has said that it ends."""

        self._lock = threading.Lock()
        self._number = 0
        self._buffer = bytearray()
        self._socket: socket.socket | None = _connected(host, port, secret, seconds)
        self.address = str(self._socket.getsockname()[0])
        """Where this process is, in the network that leads to the meeting point."""

        _of_this_process.add(self)

    @property
    def is_open(self) -> bool:
        """Whether it is worth asking."""
        return self._socket is not None

    def close(self) -> None:
        """Ask nothing any more."""
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def ask(self, operation: str, *arguments: Any, seconds: float = CALL_SECONDS) -> Any:
        """The answer to a request."""
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            raise Unreachable(f"the meeting point of the job has not answered within {seconds:g} s")
        try:
            self._number += 1
            self._send(frames.pack([self._number, operation, *arguments]), deadline)
            while True:
                number, result = self._next(deadline)
                if number == self._number:
                    return result
        except TimeoutError as error:
            raise Unreachable(f"the meeting point of the job has not answered within {seconds:g} s") from error
        except (OSError, ValueError) as error:
            self.close()
            raise Unreachable(f"the connection to the meeting point of the job is lost: {error}") from error
        finally:
            self._lock.release()

    def _send(self, data: bytes, deadline: float) -> None:
        connection = self._there()
        connection.settimeout(max(1e-3, deadline - time.monotonic()))
        try:
            connection.sendall(data)
        except TimeoutError:
            self.close()  # nobody knows how much of it has left
            raise

    def _next(self, deadline: float) -> tuple[int, Any]:
        connection = self._there()
        while True:
            found = frames.unpack(self._buffer)
            if found is not None:
                (number, result), end = found
                del self._buffer[:end]
                if number == ENDED:
                    self.has_ended = True
                    raise ConnectionResetError("it has been closed")
                return number, result
            connection.settimeout(max(1e-3, deadline - time.monotonic()))
            part = connection.recv(_CHUNK)
            if not part:
                raise ConnectionResetError("the other end has gone")
            self._buffer += part

    def _there(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionResetError("it was lost before")
        return self._socket


class Keys(Store):
    """The keys of a job that begin with one name; torch's gloo reads and writes them, too."""

    def __init__(self, connection: Connection, prefix: str = "", seconds: float = CALL_SECONDS) -> None:
        super().__init__()
        self.connection = connection
        self._prefix = prefix
        self._seconds = seconds

    def within(self, name: str, seconds: float | None = None) -> Keys:
        """Those with one more name in front; ``seconds`` limits how long they are waited for."""
        return Keys(self.connection, f"{self._prefix}{name}/", self._seconds if seconds is None else seconds)

    def set(self, key: str, value: str | bytes, seconds: float = CALL_SECONDS) -> None:
        """Write a value."""
        self.connection.ask("set", self._prefix + key, _bytes(value), seconds=seconds)

    def find(self, key: str, seconds: float = CALL_SECONDS) -> bytes | None:
        """The value, or ``None`` while there is none."""
        found: bytes | None = self.connection.ask("get", self._prefix + key, seconds=seconds)
        return found

    def get(self, key: str) -> bytes:
        """The value; waits for it."""
        self.wait([key])
        found = self.find(key)
        if found is None:
            raise Unreachable(f"{key} was there, and has gone")
        return found

    def find_all(self, keys: Sequence[str], seconds: float = CALL_SECONDS) -> list[bytes | None]:
        """The values of several keys, in one request."""
        return list(self.connection.ask("get_all", *(self._prefix + key for key in keys), seconds=seconds))

    def compare_set(self, key: str, expected: str | bytes, wanted: str | bytes, seconds: float = CALL_SECONDS) -> bytes:
        """Write a value unless another one than the expected one is there; returns what is there then."""
        arguments = self._prefix + key, _bytes(expected), _bytes(wanted)
        return bytes(self.connection.ask("compare_set", *arguments, seconds=seconds))

    def add(self, key: str, amount: int, seconds: float = CALL_SECONDS) -> int:
        """Add to a number; returns the sum."""
        return int(self.connection.ask("add", self._prefix + key, int(amount), seconds=seconds))

    def check(self, keys: Sequence[str], seconds: float = CALL_SECONDS) -> bool:
        """Whether all these have values."""
        return bool(self.connection.ask("check", *(self._prefix + key for key in keys), seconds=seconds))

    def delete_key(self, key: str) -> bool:
        """Take a value away; returns whether there was one."""
        return bool(self.connection.ask("delete", self._prefix + key))

    def num_keys(self) -> int:
        """How many values there are, with whatever names."""
        return int(self.connection.ask("count"))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these have values."""
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        deadline, pause = time.monotonic() + seconds, _POLL_SECONDS
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise Unreachable(f"{', '.join(keys)} did not come within {seconds:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_SECONDS)


class MembersKeys(Keys):
    """The keys under which the members of a group tell each other where they are.

    Gloo asks for them one after the other. All are read at once, when the last one has come: so the number of requests
    of a process does not grow with the group.
    """

    def __init__(self, keys: Keys, size: int) -> None:
        super().__init__(keys.connection, keys._prefix, keys._seconds)
        self._size = size
        self._found: dict[str, bytes] = {}

    def get(self, key: str) -> bytes:
        """The value; waits for it, and for those of all other members."""
        if key not in self._found:
            self.wait([key])
        return self._found[key] if key in self._found else super().get(key)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all these have values, and all other members theirs."""
        missing = [key for key in keys if key not in self._found]
        if not missing:
            return
        head, slash, number = missing[0].rpartition("/")
        if not number.isdigit() or int(number) >= self._size:
            super().wait(missing, timeout)
            return
        names = [f"{head}{slash}{member}" for member in range(self._size)]
        super().wait(names, timeout)
        self._found |= {name: value for name, value in zip(names, self.find_all(names), strict=True) if value}


def _connected(host: str, port: int, secret: bytes, seconds: float) -> socket.socket:
    """A connection to who proves that it is the meeting point; waits for it to come."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return _attempt(host, port, secret, deadline)
        except OSError as error:
            if time.monotonic() > deadline:
                raise Unreachable(_why(error)) from error
        time.sleep(_LONGEST_POLL_SECONDS)


def _attempt(host: str, port: int, secret: bytes, deadline: float) -> socket.socket:
    limit = max(1e-2, min(deadline - time.monotonic(), _GREETING_SECONDS))
    connection = socket.create_connection((host, port), timeout=limit)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            proof.introduce(connection, secret, time.monotonic() + limit)
        except TimeoutError as error:
            raise TimeoutError("something listens there and says nothing") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _why(error: OSError) -> str:
    return str(error.strerror or error)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


_of_this_process: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_all() -> None:
    for connection in list(_of_this_process):
        with contextlib.suppress(OSError):
            connection.close()
    _of_this_process.clear()


os.register_at_fork(after_in_child=_forget_all)
