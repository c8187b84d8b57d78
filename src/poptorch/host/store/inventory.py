"""What the files of caches are: how large, how old, how sound."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import poptorch_files
from poptorch.errors import Error
from poptorch.host.store import cache

_NAME = re.compile(rf"[0-9a-f]{{32,64}}{re.escape(cache.EXTENSION)}")
"""Files of a cache are named by what they hold; a file that a user exported to the same place is none of them."""

_FOLDER = re.compile(r"[0-9a-f]{2}")


@dataclass(frozen=True)
class CacheFile:
    """One file of a cache."""

    path: Path
    size: int
    used: float
    """When it was made or found by a program, in seconds since 1970."""


def entries(directory: Path) -> list[CacheFile]:
    """The files of a cache; none, if there is no such directory."""
    return [entry for folder in _folders(directory) for entry in _in(folder)]


def _folders(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [directory, *(path for path in directory.iterdir() if _FOLDER.fullmatch(path.name) and path.is_dir())]


def _in(folder: Path) -> list[CacheFile]:
    found = []
    for path in folder.iterdir():
        if not _NAME.fullmatch(path.name):
            continue
        try:
            status = os.lstat(path)
        except FileNotFoundError:  # another process removed it
            continue
        if not stat.S_ISDIR(status.st_mode):
            found.append(CacheFile(path, status.st_size, status.st_mtime))
    return found


def problem_of(path: Path) -> str | None:
    """Why programs do not use a file; ``None`` if nothing is wrong with it."""
    try:
        file = cache.opened(path)
        if file is not None:
            for name in file.names():
                file.bytes(name)
            store = cache.FileStore(file)
            for key in store.known():
                store.find(key)
    except Error as problem:
        return str(problem.message)
    return None


def to_remove(found: Sequence[CacheFile], oldest: float | None, max_size: int | None) -> list[CacheFile]:
    """What was last used before ``oldest``; then the least recently used until ``max_size`` bytes are left.

    >>> found = [CacheFile(Path("a"), 10, 1.0), CacheFile(Path("b"), 10, 3.0), CacheFile(Path("c"), 10, 2.0)]
    >>> [entry.path.name for entry in to_remove(found, 1.5, 10)]
    ['a', 'c']
    """
    left = sum(entry.size for entry in found)
    removed = []
    for entry in sorted(found, key=lambda entry: entry.used):
        if (oldest is not None and entry.used < oldest) or (max_size is not None and left > max_size):
            removed.append(entry)
            left -= entry.size
    return removed


def remove_unfinished(directory: Path) -> None:
    """Remove what killed programs left."""
    for folder in _folders(directory):
        poptorch_files.remove_unfinished(folder)
