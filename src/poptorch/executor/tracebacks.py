"""Tracebacks that show the user's frames: those of this package and of torch in between are folded away.

``POPTORCH_FULL_TRACEBACK=1`` keeps all of them.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import torch

from poptorch import environment
from poptorch.errors import Error, code_of
from poptorch.frames import is_users
from poptorch.runtime.failures import job_of

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_TORCH = str(Path(torch.__file__).resolve().parent)
_CONTEXT_MANAGERS = contextlib.__file__
_INDUCTOR = "torchinductor_"
"""Part of the name of the folder in which Inductor keeps the code that it generates."""

F = TypeVar("F", bound=Callable[..., Any])


def folded(error: Exception) -> Exception:
    """The same error without the frames that are not the user's.

    An error that came from nowhere in the user's code, and that this package did not mean to raise, keeps everything:
    it is to be reported.
    """
    if environment.FULL_TRACEBACK.read():
        return error
    meant = isinstance(error, Error) or job_of(error) is not None or code_of(error) or _is_raised_here(error)
    if meant or has_users_frames(error):
        _fold(error)
    return error


def _is_raised_here(error: BaseException) -> bool:
    """Whether a ``raise`` of this package made an error: it says what is wrong, and where in here says no more."""
    entries = [*_entries(error.__traceback__)]
    if not entries or not entries[-1].tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return False
    line = linecache.getline(entries[-1].tb_frame.f_code.co_filename, entries[-1].tb_lineno)
    return bool(error.args) and line.lstrip().startswith("raise ")


def has_users_frames(error: BaseException) -> bool:
    """Whether an error came up in code of the user, as far as its traceback goes."""
    return any(_is_users(trace) for trace in _entries(error.__traceback__))


def folding(function: F) -> F:
    """A function whose errors show the user's frames."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (raised again)
            raise folded(error)  # noqa: B904  (the same error)

    return cast(F, call)


def _fold(error: BaseException) -> None:
    seen = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        kept = [trace for trace in _entries(one.__traceback__) if _is_users(trace)]
        one.__traceback__ = _chain(kept)
        before = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        if before is not None and _tells_no_more(before, one):
            one.__cause__, one.__suppress_context__ = None, True
            before = None
        one = before


def _tells_no_more(before: BaseException, error: BaseException) -> bool:
    """Whether two errors are the same failure: they come from one line, or one says what the other does."""
    place = _innermost(before)
    return place == _innermost(error) or (place is None and str(before) in str(error))


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _chain(entries: list[TracebackType]) -> TracebackType | None:
    result: TracebackType | None = None
    for entry in reversed(entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def _innermost(error: BaseException) -> tuple[str, int] | None:
    """The user's innermost line on the way to an error."""
    found = None
    for trace in _entries(error.__traceback__):
        if _is_users(trace):
            found = trace.tb_frame.f_code.co_filename, trace.tb_lineno
    return found


def _is_users(trace: TracebackType) -> bool:
    name = trace.tb_frame.f_code.co_filename
    if name.startswith("<"):
        return is_users(trace.tb_frame)
    return not name.startswith((_PACKAGE, _TORCH, _CONTEXT_MANAGERS)) and _INDUCTOR not in name
