"""Writing a file so that readers see all of it or what was there before, in folders where others write, too.

A file is written under another name beside its place and renamed when it is complete. The other name cannot be guessed
and must be new, so no link that somebody prepared is followed. It also says which process of which host is writing:
what a process left that was killed is removed by the next one that writes into the folder. No lock decides that,
because some network file systems grant locks that have no effect.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from poptorch_files.reading import FileError

UNFINISHED = ".poptorch-saving"
"""How the names of files end that are being written."""

_NAME = re.compile(rf"\.([0-9a-f]{{12}})-(\d+)-(\d*)-[0-9a-f]{{16}}{re.escape(UNFINISHED)}")
_ABANDONED_SECONDS = 86_400
"""How old a file must be that a process of another host left: nobody here can tell whether that process still runs."""

_ATTEMPTS = 3


def replace(path: str | os.PathLike[str], content: bytes | Sequence[bytes], mode: int = 0o666) -> None:
    """Write a file as a whole. One that is there keeps its permissions; a new one gets ``mode`` without the umask.

    Large content comes in parts, which are not joined in memory.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> replace(path, b"text")
    >>> path.read_bytes(), len(list(path.parent.iterdir()))
    (b'text', 1)
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with atomic(path, mode) as file:
                file.writelines([content] if isinstance(content, bytes) else content)
        except _Removed:
            if attempt == _ATTEMPTS:
                raise
        else:
            return


class _Removed(FileNotFoundError):
    """Somebody removed a file that was being written."""


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str], mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that takes its name when it is complete."""
    place = Path(path)
    remove_unfinished(place.parent)
    kept_mode = _mode(place, mode)
    descriptor, temporary = _temporary(place.parent, mode if kept_mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if kept_mode is not None:
                os.fchmod(descriptor, kept_mode)
            os.fsync(descriptor)
            try:
                os.replace(temporary, place)
            except FileNotFoundError as error:
                raise _Removed(error.errno, "the unfinished file was removed", str(temporary)) from None
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def quietly_replaced(path: str | os.PathLike[str], content: bytes) -> bool:
    """Write a file that a program can do without; tells whether that was possible."""
    try:
        replace(path, content)
    except (OSError, ValueError):
        return False
    return True


def create(path: str | os.PathLike[str], content: bytes, mode: int = 0o666) -> os.stat_result:
    """Write a file that must be new, whatever the name stands for: ``FileExistsError`` for links, too."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            _write_all(file, content)
            return os.fstat(descriptor)
    except OSError:  # no half of a file on a disk that is full
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


@contextlib.contextmanager
def made_by_another(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A name for a file that another program writes, a compiler for instance; it takes its place when all went well."""
    place = Path(path)
    remove_unfinished(place.parent)
    descriptor, temporary = _temporary(place.parent, 0o600)
    os.close(descriptor)
    try:
        yield temporary
        os.replace(temporary, place)
    finally:
        temporary.unlink(missing_ok=True)


def create_complete(path: str | os.PathLike[str], content: bytes, mode: int = 0o600) -> bool:
    """Write a file that is complete from the first moment; false, and nothing happens, if there is one already."""
    place = Path(path)
    remove_unfinished(place.parent)
    descriptor, temporary = _temporary(place.parent, mode)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            _write_all(file, content)
        os.link(temporary, place)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    return True


def extend(path: str | os.PathLike[str], made: os.stat_result, overwritten: int, content: bytes) -> None:
    """Put content in place of the last bytes of a file that :func:`create` made, with the status that it returned.

    If another file has taken its place, or the disk is full, the file stays as it is.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        now = os.fstat(descriptor)
        if not os.path.samestat(made, now):
            raise FileError("it is another file than the one that this process made", path)
        file.seek(now.st_size - overwritten)
        kept = file.read(overwritten)
        file.seek(now.st_size - overwritten)
        try:
            _write_all(file, content)
        except OSError:
            with contextlib.suppress(OSError):
                os.pwrite(descriptor, kept, now.st_size - overwritten)
                os.ftruncate(descriptor, now.st_size)
            raise


def _write_all(file: FileIO, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _mode(path: Path, usual: int) -> int | None:
    """The permissions of a file that is there. A link, which is replaced, cannot give more than the usual ones."""
    try:
        found = os.stat(path).st_mode
        most = usual if stat.S_ISLNK(os.lstat(path).st_mode) else 0o777
    except OSError:
        return None
    return found & most if stat.S_ISREG(found) else None


def _temporary(folder: Path, mode: int) -> tuple[int, Path]:
    own = os.getpid()
    path = folder / f".{_here()}-{own}-{_started(own)}-{secrets.token_hex(8)}{UNFINISHED}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode), path


# -- what others left --------------------------------------------------------------------------------------------------


def remove_unfinished(folder: Path) -> int:
    """Remove what processes left that ended while they were writing; returns how many files these were."""
    removed = 0
    try:
        names = [name for name in os.listdir(folder) if name.endswith(UNFINISHED)]
    except OSError:
        return 0
    for name in names:
        with contextlib.suppress(OSError):  # it is gone, or somebody else's
            if _is_abandoned(folder / name):
                os.unlink(folder / name)
                removed += 1
    return removed


def _is_abandoned(path: Path) -> bool:
    """Whether nobody writes the file any more: its process is gone, or, where nobody can tell, it is a day old."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        return False
    found = _NAME.fullmatch(path.name)
    # Processes of other users may be hidden.
    if found is not None and found[1] == _here() and status.st_uid == os.geteuid():
        return not _is_running(int(found[2]), found[3])
    return time.time() - status.st_mtime > _ABANDONED_SECONDS


def _is_running(process: int, started: str) -> bool:
    if os.path.exists("/proc/self/stat"):
        state, now = _state(process)
        return state not in ("", "Z", "X") and now == started
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


@functools.cache
def _here() -> str:
    """Where numbers of processes are those of this one: this start of this host, and this container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"))
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _started(process: int) -> str:
    return _state(process)[1]


def _state(process: int) -> tuple[str, str]:
    """The state letter of a process, and when it started: numbers of processes are used again."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")
