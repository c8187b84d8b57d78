"""The place where the processes of a job meet: a small key-value store that one of them, or PopRun, serves.

It listens at the address that it is given and no other. Nothing is read from a connection before the other end has
proven that it belongs to the job (:mod:`poptorch.distributed.proof`). One thread serves all connections, and none of
them can make it wait.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from poptorch.distributed import frames, proof

_PROOF_SECONDS = 20.0
"""How long a stranger may take to prove that it is none."""

_MOST_STRANGERS = 512
"""The first of them goes when there are more. The processes of a large job come at about the same time."""

_CLOSING_SECONDS = 2.0
_CHUNK = 1 << 16

ENDED = -1
"""The number of the answer that nobody asked for: the meeting point has closed in good order."""


class MeetingPoint:
    """Serves the store from a thread of its own, until it is closed or its process ends."""

    def __init__(self, listening: socket.socket, secret: bytes) -> None:
        self._listening = listening
        self._listening.setblocking(False)
        self._secret = secret
        self._values: dict[str, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._guests: dict[socket.socket, _Guest] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._open = True
        self.address = str(listening.getsockname()[0])
        self.port = int(listening.getsockname()[1])
        _of_this_process.add(self)
        self._thread = threading.Thread(target=self._serve, name="poptorch-meeting-point", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Say to all that nobody listens any more, and end."""
        if self._open:
            self._open = False
            self._wake.send(b"x")
            self._thread.join(_CLOSING_SECONDS)

    def forget(self) -> None:
        """Close the copies of a forked process: the connections end with the process that made them."""
        self._open = False
        for connection in (self._listening, self._wake, self._woken, *self._guests):
            connection.close()
        self._selector.close()

    def _serve(self) -> None:
        while self._open:
            for key, events in self._selector.select(_PROOF_SECONDS):
                if key.fileobj is self._listening:
                    self._welcome()
                elif key.fileobj is not self._woken:
                    self._attend(self._guests[key.fileobj], events)  # type: ignore[index]
            now = time.monotonic()
            for guest in [guest for guest in self._guests.values() if not guest.proven and guest.deadline < now]:
                self._dismiss(guest)
        self._listening.close()
        for guest in list(self._guests.values()):
            with contextlib.suppress(OSError):
                if guest.proven:
                    guest.connection.setblocking(True)
                    guest.connection.settimeout(_CLOSING_SECONDS)
                    guest.connection.sendall(bytes(guest.out) + frames.pack([ENDED, None]))
            self._dismiss(guest)

    def _welcome(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:  # it has gone already, or there are no descriptors left
            return
        connection.setblocking(False)
        strangers = [guest for guest in self._guests.values() if not guest.proven]
        if len(strangers) >= _MOST_STRANGERS:
            self._dismiss(strangers[0])
        guest = self._guests[connection] = _Guest(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        guest.out += proof.GREETING + guest.challenge
        self._attend(guest, selectors.EVENT_WRITE)

    def _attend(self, guest: _Guest, events: int) -> None:
        """Go on with one connection; what goes wrong there ends that connection only."""
        try:
            if events & selectors.EVENT_READ:
                part = guest.connection.recv(_CHUNK)
                if not part:
                    raise ConnectionResetError("closed")
                guest.read += part
                self._answer(guest)
            if guest.out:
                del guest.out[: guest.connection.send(guest.out)]
        except BlockingIOError:
            pass
        except (OSError, ValueError, TypeError, LookupError, RecursionError, proof.NotProven):
            self._dismiss(guest)
            return
        more = selectors.EVENT_WRITE if guest.out else 0
        self._selector.modify(guest.connection, selectors.EVENT_READ | more)

    def _answer(self, guest: _Guest) -> None:
        if not guest.proven:
            guest.listen_to_proof(self._secret)
        while guest.proven:
            found = frames.unpack(guest.read)
            if found is None:
                return
            (number, name, *arguments), end = found
            del guest.read[:end]
            result = _OPERATIONS[name](self._values, *arguments)
            guest.out += frames.pack([number, result])

    def _dismiss(self, guest: _Guest) -> None:
        del self._guests[guest.connection]
        self._selector.unregister(guest.connection)
        guest.connection.close()


class _Guest:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.challenge = proof.challenge()
        self.deadline = time.monotonic() + _PROOF_SECONDS
        self.proven = False
        self.read = bytearray()
        self.out = bytearray()

    def listen_to_proof(self, secret: bytes) -> None:
        """Believe who answers the challenge, and answer the other's."""
        size = proof.CHALLENGE_BYTES + proof.ANSWER_BYTES
        if len(self.read) < size:
            return
        theirs, given = bytes(self.read[: proof.CHALLENGE_BYTES]), bytes(self.read[proof.CHALLENGE_BYTES : size])
        if not proof.is_right(given, secret, "client", self.challenge, theirs):
            raise proof.NotProven
        del self.read[:size]
        self.proven = True
        self.out += proof.answer(secret, "server", theirs, self.challenge)


def _set(values: dict[str, bytes], key: str, value: bytes) -> None:
    values[key] = value


def _compare_set(values: dict[str, bytes], key: str, expected: bytes, wanted: bytes) -> bytes:
    """Replace a value that is as expected, or where nothing is and nothing is expected; returns what is there then."""
    if values.get(key, b"") == expected:
        values[key] = wanted
    return values.get(key, expected)


def _add(values: dict[str, bytes], key: str, amount: int) -> int:
    total = int(values.get(key, b"0")) + amount
    values[key] = str(total).encode()
    return total


def _check(values: dict[str, bytes], *keys: str) -> bool:
    return all(key in values for key in keys)


def _delete(values: dict[str, bytes], key: str) -> bool:
    return values.pop(key, None) is not None


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "set": _set,
    "get": lambda values, key: values.get(key),
    "get_all": lambda values, *keys: [values.get(key) for key in keys],
    "compare_set": _compare_set,
    "add": _add,
    "check": _check,
    "delete": _delete,
    "count": lambda values: len(values),
}

_of_this_process: weakref.WeakSet[MeetingPoint] = weakref.WeakSet()


def _forget_all() -> None:
    for point in list(_of_this_process):
        point.forget()
    _of_this_process.clear()


os.register_at_fork(after_in_child=_forget_all)
