"""How processes prove to each other that they belong to one job: they know its secret, and never say it.

Each of two processes sends a number that was never used before, and answers the other's with a digest of it under the
secret. What was answered once is of no use to who listened.

>>> mine, theirs = challenge(), challenge()
>>> answer(b"secret", "client", mine, theirs) == answer(b"secret", "client", mine, theirs)
True
>>> is_right(answer(b"guess", "client", mine, theirs), b"secret", "client", mine, theirs)
False
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time

from poptorch import environment

CHALLENGE_BYTES = 32
ANSWER_BYTES = 32
GREETING = b"poptorch job 1\n"


class NotProven(RuntimeError):
    """Somebody is not who it has to be."""


def chosen_secret() -> bytes:
    """The secret that the launcher, or the user, gave to all processes of the job; empty if there is none."""
    return (environment.JOB_SECRET.read() or "").encode()


def new_secret() -> str:
    """A secret for one job."""
    return secrets.token_hex(32)


def challenge() -> bytes:
    """What another process has to answer."""
    return secrets.token_bytes(CHALLENGE_BYTES)


def answer(secret: bytes, role: str, *challenges: bytes) -> bytes:
    """The answer to challenges of one length; ``role`` keeps it from being the answer to another question."""
    return hmac.new(secret, role.encode() + b"\0" + b"".join(challenges), hashlib.sha256).digest()


def is_right(given: bytes, secret: bytes, role: str, *challenges: bytes) -> bool:
    """Whether an answer is the right one."""
    return hmac.compare_digest(given, answer(secret, role, *challenges))


def introduce(connection: socket.socket, secret: bytes, deadline: float) -> None:
    """Prove to the one that listens, who has to prove it first, that this process belongs to the job.

    ``TimeoutError`` if it says nothing, :class:`NotProven` if it says something else.
    """
    greeting = receive(connection, len(GREETING) + CHALLENGE_BYTES, deadline)
    if not greeting.startswith(GREETING):
        raise NotProven("something listens there that is no meeting point of a job")
    theirs, mine = greeting[len(GREETING) :], challenge()
    connection.sendall(mine + answer(secret, "client", theirs, mine))
    try:
        said = receive(connection, ANSWER_BYTES, deadline)
    except ConnectionError:
        said = b""
    if not is_right(said, secret, "server", mine, theirs):
        raise NotProven(
            f"who listens there has another secret: {environment.JOB_SECRET.name} must be the same in all processes of "
            "a job, and two jobs cannot have one port"
        )


def receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly some bytes, or ``TimeoutError``."""
    found = b""
    while len(found) < size:
        connection.settimeout(max(1e-3, deadline - time.monotonic()))
        part = connection.recv(size - len(found))
        if not part:
            raise ConnectionResetError("the connection was closed")
        found += part
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return found
