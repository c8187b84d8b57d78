"""Whose code it is: stored native code runs only if this user's own key signed it.

Stored code is Python text and machine code: what runs it can do all that the user can. Hashes tell damage from sound
files, not friends from others. So each entry has a signature (HMAC with SHA-256), and the key is a file that the user
alone can read. It lies in the home directory and not beside the entries, because exported files lie anywhere, and
because a cache directory has one file for each graph and no other. Code that another user, another machine or another
key signed is compiled again.

Caches must belong to the user besides, and others must not be able to write to them.
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import hmac
import json
import os
import pwd
import secrets
import stat
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from poptorch import environment
from poptorch._logging import logger
from poptorch_files import create_complete, state_folder

_SIZE = 32


def signature(key: str, text: str, blobs: Mapping[str, bytes]) -> str:
    """The signature of code; ``key`` is what it is found by, so that no code can stand for another.

    >>> signature("a", "text", {}) == signature("b", "text", {})
    False
    """
    parts = [key, _hash(text.encode()), *([name, _hash(data)] for name, data in sorted(blobs.items()))]
    return hmac.new(_secret(), json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def is_signed(given: str, key: str, text: str, blobs: Mapping[str, bytes]) -> bool:
    """Whether this user's key made the signature."""
    return hmac.compare_digest(given.encode(), signature(key, text, blobs).encode())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- the key -------------------------------------------------------------------------------------------------------


def _secret() -> bytes:
    return _kept_secret(environment.KEY_FILE.read())


@cache
def _kept_secret(chosen: str | None) -> bytes:
    """The key of this user; one for this process alone where none can be kept."""
    problem = ""
    for path in _places(chosen):
        try:
            return _read(path)
        except FileNotFoundError:
            with contextlib.suppress(OSError, ValueError):
                return _created(path)
        except (OSError, ValueError) as error:
            problem = f" ({error})"
    logger.warning(
        "Native code is compiled by every process: there is no place for the key that signs it%s. Set %s to a file in "
        "a directory of your own.",
        problem,
        environment.KEY_FILE.name,
    )
    return secrets.token_bytes(_SIZE)


def _places(chosen: str | None) -> Iterator[Path]:
    if chosen is not None:
        yield Path(chosen)
        return
    with contextlib.suppress(RuntimeError):  # not every user has a home directory
        yield state_folder() / "key"
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    yield Path(cache_dir()) / "poptorch" / "key"


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ValueError(f"{path} must be a file that its owner alone can read, and belong to this user")
        content = os.read(descriptor, _SIZE + 1)
    finally:
        os.close(descriptor)
    if len(content) != _SIZE:
        raise ValueError(f"{path} must have {_SIZE} bytes: remove it, and a new one is made")
    return content


def _created(path: Path) -> bytes:
    """A new key, or the one that another process made at the same time."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    create_complete(path, secrets.token_bytes(_SIZE))
    return _read(path)


# -- places --------------------------------------------------------------------------------------------------------


def distrusted(status: os.stat_result) -> str | None:
    """Why a file or directory of a cache may hold what others put there; ``None`` if it may not."""
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)):
        return "other users can write to it"
    return None


def _is_own_group(group: int) -> bool:
    """Whether the user is the only member of a group, as where every user has a group of the same name."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and user.pw_name == found.gr_name and {*found.gr_mem} <= {user.pw_name}
