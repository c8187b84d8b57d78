"""Connection files: which file describes the IPUs of which process, as programs of 2020 say it."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable
from pathlib import Path

DEFAULT = "~/.ipuof.conf.d/*.conf"
"""Where creating a partition writes them."""


def connection_files(patterns: str | Iterable[str]) -> dict[int, str]:
    """The files that match patterns, by the part (GCD) of a partition that each describes.

    >>> connection_files("/no/such/folder/*.conf")
    {}
    """
    found: dict[int, str] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        for file in sorted(glob.glob(os.path.expanduser(pattern))):
            gcd = _gcd(Path(file))
            assert found.get(gcd, file) == file, (
                f"Multiple config files are registered to handle GCD {gcd}: {found[gcd]} and {file}. Give a pattern "
                "that only the files of one partition match."
            )
            found[gcd] = file
    return found


def _gcd(file: Path) -> int:
    attributes = json.loads(file.read_text(encoding="utf-8")).get("attributes") or {}
    return int(attributes.get("GCD Id") or 0)
