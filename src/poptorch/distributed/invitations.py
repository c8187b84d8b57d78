"""Files that show processes of this host the way to their meeting point; only this user can read them."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from poptorch import environment, launchers
from poptorch.errors import createPoptorchError

_LONGEST = 4096
_MOST_PORTS = 65535


@dataclass(frozen=True)
class Invitation:
    """What process 0 tells the others."""

    port: int
    secret: bytes = field(repr=False)
    pid: int
    started: str

    @staticmethod
    def by_this_process(port: int, secret: bytes) -> Invitation:
        """The process that listens."""
        return Invitation(port, secret, os.getpid(), launchers.start_time(os.getpid()))

    def write(self, path: Path) -> None:
        """As a whole, in place of what an earlier process left."""
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            draft.unlink(missing_ok=True)
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(file, "w", encoding="utf-8") as out:
                json.dump({**asdict(self), "secret": self.secret.decode()}, out)
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise _cannot_write(path, error) from error

    @staticmethod
    def read(path: Path) -> Invitation | None:
        """What the file says; ``None`` if there is none, or if a process left it that has ended."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(file, "rb") as content:
            about = os.fstat(file)
            if about.st_uid != os.getuid() or not stat.S_ISREG(about.st_mode) or stat.S_IMODE(about.st_mode) & 0o077:
                raise createPoptorchError(f"{path} is not a private file of this user: remove it.")
            text = content.read(_LONGEST)
        try:
            found = json.loads(text)
            port, pid, started = int(found["port"]), int(found["pid"]), str(found["started"])
            invitation = Invitation(port, str(found["secret"]).encode(), pid, started)
        except (ValueError, OverflowError, KeyError, TypeError, RecursionError):
            return None
        alive = launchers.state_of(pid) not in ("", "Z") and launchers.start_time(pid) == started
        return invitation if alive and 0 < port <= _MOST_PORTS else None


def _cannot_write(path: Path, error: OSError) -> Exception:
    return createPoptorchError(
        f"Process 0 cannot tell the others of this host where it listens: {path}: {error.strerror}. Set TMPDIR to a "
        f"folder that all of them can write to, or {environment.RENDEZVOUS.name} to an address and "
        f"{environment.JOB_SECRET.name} to a random text."
    )


def private_folder() -> Path:
    """A folder in the temporary one. Others can guess its name: only our own is used."""
    folder = Path(tempfile.gettempdir()) / f"poptorch-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError as error:
        raise _cannot_write(folder, error) from error
    if about.st_uid != os.getuid() or not stat.S_ISDIR(about.st_mode):
        raise createPoptorchError(
            f"{folder} is not a folder of this user. Set TMPDIR to a folder of your own, or "
            f"{environment.RENDEZVOUS.name} to host:port."
        )
    if stat.S_IMODE(about.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder
