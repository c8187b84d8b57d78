"""Which line of the user's code an operation comes from."""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

import torch

from poptorch.frames import is_typed
from poptorch.program.opinfo import SourceLocation

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_TORCH = Path(torch.__file__).parent
_MACHINERY = tuple(
    f"{_TORCH}/{part}" for part in ("_compile.py", "_dynamo", "_ops.py", "_subclasses", "fx", "overrides.py", "utils/_")
)
"""What stands between an operation and the recorder, and calls none itself."""

_STANDARD = sysconfig.get_path("stdlib")
_INSTALLED = tuple(f"{_STANDARD}/{folder}-packages" for folder in ("site", "dist"))

_OPERATORS = (str(_TORCH / "_tensor.py"),)
"""Operators of tensors that are written in Python: nobody looks for a line of theirs."""

DEFAULT_EXCLUDES = ("install/poptorch", "site-packages/torch", "site-packages/poptorch")


def location_of(error: BaseException, excludes: Sequence[str] = DEFAULT_EXCLUDES) -> SourceLocation | None:
    """The user's innermost line on the way to an error; ``None`` when there is none."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if _is_users(trace.tb_frame.f_code, excludes, trace.tb_frame):
            found = SourceLocation(name, trace.tb_lineno)
        trace = trace.tb_next
    return found


def definition_of(function: object, excludes: Sequence[str] = DEFAULT_EXCLUDES) -> SourceLocation | None:
    """Where a function of the user is written; ``None`` for any other function."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)  # type: ignore[arg-type]
    if not isinstance(code, CodeType) or not _is_users(code, excludes):
        return None
    return SourceLocation(code.co_filename, code.co_firstlineno)


def _is_users(code: CodeType, excludes: Sequence[str], frame: FrameType | None = None) -> bool:
    file = code.co_filename
    if file.startswith((_PACKAGE, *_MACHINERY)) or any(part in file for part in excludes):
        return False
    if file.startswith("<"):
        return is_typed(file, code.co_name, frame.f_globals.get("__name__") if frame is not None else None)
    return not file.startswith(_STANDARD) or file.startswith(_INSTALLED)  # context managers, partial functions


def innermost_location() -> SourceLocation | None:
    """The innermost frame that is not ours, in the user's code or in a library, torch included."""
    return user_location(_OPERATORS)


def innermost_location_of(error: BaseException) -> SourceLocation | None:
    """The innermost line on the way to an error in the user's code or in a library, torch not included."""
    return location_of(error, (f"{_TORCH}/",))


def called_from(inner: SourceLocation | None, user: SourceLocation | None) -> str | None:
    """A line, and that of the user who calls it from elsewhere.

    >>> called_from(SourceLocation("library.py", 3), SourceLocation("model.py", 5))
    'library.py:3, which is called from model.py:5'
    """
    if inner is None or user is None or inner == user:
        return None if inner is None and user is None else str(inner or user)
    return f"{inner}, which is called from {user}"


def own_location(excludes: Sequence[str] = DEFAULT_EXCLUDES) -> SourceLocation | None:
    """The innermost line of the user's that is not in an installed package, or in one if there is no other."""
    return user_location((*excludes, *_INSTALLED)) or user_location(excludes)


def user_location(excludes: Sequence[str] = DEFAULT_EXCLUDES) -> SourceLocation | None:
    """The innermost frame that is neither ours nor excluded; ``None`` when all are."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code, excludes, frame):
            return SourceLocation(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None
