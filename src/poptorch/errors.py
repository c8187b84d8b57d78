"""The exceptions of the package, and the names of what was going on when one of them was raised.

``Error`` covers both sides. :func:`createPoptorchError` builds the Python-side kind, for misuse of the API;
:func:`backend_error` the kind raised while a program is compiled, loaded or run, which also knows its
*context*: the steps that were under way, as named by :func:`error_context`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from poptorch import _logging
from poptorch.frames import users_frame
from poptorch_files import quietly_replaced

ERROR_LOG = "poptorch_error.log"
"""Where a message that is too long for a terminal goes, in the current directory."""

MAX_MESSAGE_LINES = 80

RECOVERY_ACTIONS = ("IPU_RESET", "PARTITION_RESET", "FULL_RESET")


class Error(Exception):
    """Something went wrong in the backend, or the API was used in a way that cannot work.

    >>> error = createPoptorchError("no such tensor")
    >>> error.type, error.message, error.location
    ('poptorch_py_error', 'no such tensor', '')
    """

    message: str
    """What went wrong, without location or context."""

    type: str
    """Which part raised it, for instance ``poptorch_py_error`` or ``poplar_link_error``."""

    location: str
    """What was going on, innermost first, one numbered line each; empty for errors of the Python side."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.message = str(args[0]) if args else ""
        self.type = "poptorch_py_error"
        self.location = ""


class RecoverableError(Error):
    """A failure of the device that is probably transient; ``recovery_action`` says what to reset.

    Either ``IPU_RESET`` (reset the IPU and load its memory again), ``PARTITION_RESET`` (reset the partition
    and its links) or ``FULL_RESET`` (power cycle).
    """

    recovery_action: str

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.recovery_action = "FULL_RESET"


class UnrecoverableError(Error):
    """A persistent failure of the device: take the system out of service."""


class IndexOutOfRange(IndexError, RuntimeError):
    """An index, a label or an identifier that is not within its range while a program runs.

    Interpreted code raises ``IndexError`` for this and native code ``RuntimeError``. Programs that catch either catch
    this one.
    """


class _ContextStack(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


_contexts = _ContextStack()
_SomeError = TypeVar("_SomeError", bound=Error)


@contextmanager
def error_context(name: str) -> Iterator[None]:
    """Name the step that the enclosed code performs; backend errors raised inside list it.

    >>> with error_context("lowering"), error_context("op 'conv1'"):
    ...     error = backend_error("no such op")
    >>> print(error.location)
      [0] op 'conv1'
      [1] lowering
    """
    traced = _logging.contexts_are_traced()
    if traced:
        _logging.backend.trace("Enter %s", name)
    _contexts.names.append(name)
    try:
        yield
    finally:
        _contexts.names.pop()
        if traced:
            _logging.backend.trace("Leave %s", name)


def createPoptorchError(msg: str) -> Error:
    """Build (not raise) the error for a wrong use of the Python API.

    >>> raise createPoptorchError("call compile() first")
    Traceback (most recent call last):
    ...
    poptorch.errors.Error: 'poptorch_py_error': call compile() first
    """
    message = _short(msg)
    error = Error(f"'poptorch_py_error': {message}")
    error.message = message
    return error


def add_to_message(error: Error, text: str) -> None:
    """Let an error say more.

    >>> error = createPoptorchError("no such tensor.")
    >>> add_to_message(error, " (at model.py:3)")
    >>> str(error), error.message
    ("'poptorch_py_error': no such tensor. (at model.py:3)", 'no such tensor. (at model.py:3)')
    """
    longer = error.message + text
    first, *rest = error.args
    error.args = (str(first).replace(error.message, longer, 1), *rest)
    error.message = longer


def backend_error(message: str, origin: str = "poptorch_cpp_error") -> Error:
    """Build the error for a failure while compiling, loading or running; ``origin`` becomes its ``type``.

    >>> str(backend_error("no such op")).endswith("'poptorch_cpp_error': no such op")
    True
    """
    return _described(Error, message, origin, _raised_at())


def recoverable_error(
    message: str, recovery_action: str, origin: str = "poplar_recoverable_runtime_error"
) -> RecoverableError:
    """Build the error for a transient failure of a device that ``recovery_action`` should cure.

    >>> recoverable_error("peer 3 is gone", "PARTITION_RESET").recovery_action
    'PARTITION_RESET'
    """
    if recovery_action not in RECOVERY_ACTIONS:
        known = ", ".join(RECOVERY_ACTIONS)
        raise ValueError(f"Unknown recovery action {recovery_action!r}; use one of {known}")
    note = f"Recovery action required: {recovery_action}"
    error = _described(RecoverableError, message, origin, _raised_at(), note)
    error.recovery_action = recovery_action
    return error


def unrecoverable_error(message: str, origin: str = "poplar_unrecoverable_runtime_error") -> UnrecoverableError:
    """Build the error for a device that must not be used any more.

    >>> unrecoverable_error("tile memory parity").type
    'poplar_unrecoverable_runtime_error'
    """
    return _described(UnrecoverableError, message, origin, _raised_at())


def _described(kind: type[_SomeError], message: str, origin: str, raised_at: str, *notes: str) -> _SomeError:
    message = _short(message)
    location = "\n".join(f"  [{depth}] {name}" for depth, name in enumerate(reversed(_contexts.names)))
    lines = [f"In {raised_at}: '{origin}': {message}", *notes]
    if location:
        lines += ["Error raised in:", location]
    error = kind("\n".join(lines))
    error.message, error.type, error.location = message, origin, location
    return error


def _raised_at() -> str:
    """``file:line`` of the user's code that led here; without any, of the code that asked this module for an error."""
    here = sys._getframe(2)
    frame = users_frame(here) or here
    path = Path(frame.f_code.co_filename)
    if frame is here and "poptorch" in path.parts:
        parts = path.parts
        path = Path(*parts[len(parts) - 1 - parts[::-1].index("poptorch") :])
    return f"{path.as_posix()}:{frame.f_lineno}"


def _short(message: str) -> str:
    """``message`` itself, or a pointer to the file that now holds it when it is longer than a few screens."""
    if message.count("\n") < MAX_MESSAGE_LINES:
        return message
    written = quietly_replaced(ERROR_LOG, f"{message}\n".encode(errors="replace"))
    # A directory that cannot be written must not cost the user the message.
    return f"See {ERROR_LOG} for details" if written else message
