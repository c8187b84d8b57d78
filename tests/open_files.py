"""What the descriptors of this process lead to."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_files(part: str | Path = "") -> set[str]:
    """Each open descriptor as ``number -> file``, where ``part`` is in the file's name."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed since it was listed: by another thread, or the one of the listing
            file = os.readlink(f"/proc/self/fd/{number}")
            if str(part) in file:
                found.add(f"{number} -> {file}")
    return found
