"""Which line of the user's code an operation comes from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

from poptorch.program.opinfo import SourceLocation

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_TORCH = Path(torch.__file__).parent
_MACHINERY = tuple(
    f"{_TORCH}/{part}"
    for part in ("_compile.py", "_dynamo", "_ops.py", "_subclasses", "fx", "overrides.py", "utils/_")
)
"""What stands between an operation and the recorder, and calls none itself."""

DEFAULT_EXCLUDES = ("install/poptorch", "site-packages/torch", "site-packages/poptorch")


def location_of(error: BaseException, excludes: Sequence[str] = DEFAULT_EXCLUDES) -> SourceLocation | None:
    """The user's innermost line on the way to an error; ``None`` when there is none."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if _is_users(name, excludes):
            found = SourceLocation(name, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _is_users(file: str, excludes: Sequence[str]) -> bool:
    return not file.startswith((_PACKAGE, "<", *_MACHINERY)) and not any(part in file for part in excludes)


def user_location(excludes: Sequence[str] = DEFAULT_EXCLUDES) -> SourceLocation | None:
    """The innermost frame that is neither ours nor excluded; ``None`` when all are."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if _is_users(name, excludes):
            return SourceLocation(name, frame.f_lineno)
        frame = frame.f_back
    return None
