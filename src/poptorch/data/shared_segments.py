"""Shared memory of workers that were killed.

PyTorch's workers put each batch into a segment that has a name for a moment, until it is mapped. A worker that
is killed in that moment leaves the segment behind, and nobody else would ever remove it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_SEGMENTS = Path("/dev/shm")


def remove_segments(pids: Iterable[int], directory: Path = _SEGMENTS) -> None:
    """Unlink what the dead processes ``pids`` left behind; what others have mapped stays usable for them.

    >>> remove_segments([])
    """
    prefixes = tuple(f"torch_{pid}_" for pid in pids)  # the name that torch gives its segments
    if not prefixes or not directory.is_dir():
        return
    for segment in directory.iterdir():
        if segment.name.startswith(prefixes):
            with contextlib.suppress(OSError):
                segment.unlink()


def members_of_group(leader: int) -> list[int]:
    """The living processes of a process group; empty where the system does not list its processes.

    >>> os.getpid() in members_of_group(os.getpgrp())
    True
    """
    found = []
    proc = Path("/proc")
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == leader:
                    found.append(int(entry.name))
    return found
