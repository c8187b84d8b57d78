"""Reading a file that may be anything: how large it is, of which kind it is and what it holds is not known before."""

from __future__ import annotations

import errno
import json
import os
import select
import stat
import time
from typing import Any

MOST = 16 << 20
"""How many bytes a file of settings may have, if nothing else is said. Real ones have some kilobytes."""

_SECONDS = 10.0
"""How long a pipe or a terminal may be silent."""

_CHUNK = 1 << 20


class FileError(OSError):
    """A file that cannot be used, for a reason that the system knows nothing of."""

    def __init__(self, problem: str, path: str | os.PathLike[str], number: int = errno.EINVAL) -> None:
        super().__init__(number, problem, os.fspath(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def read_bytes(path: str | os.PathLike[str], most: int = MOST, *, regular: bool = False) -> bytes:
    """All bytes of a file of at most ``most`` bytes; ``OSError`` for anything else.

    No more than that is taken into memory, whatever the file is. Pipes are read, too, unless it must be a ``regular``
    file, as it must in folders that others can write to; one that stays silent is given up after some seconds.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:  # a NUL in the name, for instance
        raise FileError(str(error), repr(path)) from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise FileError(os.strerror(errno.EISDIR), path, errno.EISDIR)
        if not stat.S_ISREG(status.st_mode) and regular:
            raise FileError("it is not a regular file", path)
        if status.st_size > most:
            raise _too_large(path, most)
        return _all(descriptor, path, most)
    finally:
        os.close(descriptor)


def _all(descriptor: int, path: str | os.PathLike[str], most: int) -> bytes:
    parts: list[bytes] = []
    size, deadline = 0, time.monotonic() + _SECONDS
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    while size <= most:
        left = deadline - time.monotonic()
        if left <= 0 or not ready.poll(left * 1000):
            raise FileError(f"nothing came from it within {_SECONDS:g} s", path, errno.ETIMEDOUT)
        try:
            part = os.read(descriptor, min(_CHUNK, most + 1 - size))
        except BlockingIOError:  # another reader was faster
            continue
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise _too_large(path, most)


def _too_large(path: str | os.PathLike[str], most: int) -> FileError:
    return FileError(f"it is larger than {most >> 10} KiB", path, errno.EFBIG)


def read_text(path: str | os.PathLike[str], most: int = MOST, *, regular: bool = False) -> str:
    """The text of a file; ``OSError`` for anything that is not text in UTF-8."""
    content = read_bytes(path, most, regular=regular)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"it is not text in UTF-8 (byte {error.start})", path, errno.EILSEQ) from None


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says; ``ValueError`` for anything else, however deep.

    >>> parse_json("[1]")
    [1]
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
