"""Connection files: which file describes the IPUs of which process, as programs of 2020 say it."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from poptorch.errors import createPoptorchError
from poptorch_files import parse_json, read_text

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
    try:
        attributes = parse_json(read_text(file, regular=True)).get("attributes") or {}
        return int(attributes.get("GCD Id") or 0)
    except OSError as error:
        problem = error.strerror
    except (ValueError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise createPoptorchError(
        f"The connection file {file} cannot be used: {str(problem)[:200]}. Give a pattern that only connection files "
        "match, or make the partition again."
    )
