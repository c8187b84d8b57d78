"""What importing the package does to the process: crash reports, uncaught exceptions, Ctrl-C, the check of torch."""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import signal
import subprocess
import sys
import traceback
from types import TracebackType

import torch

from poptorch._logging import logger
from poptorch.interrupts import prepare_interrupts

MINIMUM_TORCH = (2, 13)
"""Capture and code generation use parts of torch that older releases do not have. Newer ones are welcome. The metadata
of the package demand the same."""

_fork_safe = "RDMAV_FORK_SAFE"


def prepare_process() -> None:
    """Apply all import-time effects; doing it twice is the same as doing it once."""
    check_torch(torch.__version__)
    os.environ.setdefault(_fork_safe, "1")
    enable_fault_reports()
    prepare_interrupts()
    if sys.excepthook is not log_uncaught:
        global _previous_hook
        _previous_hook = sys.excepthook
        sys.excepthook = log_uncaught


def check_torch(version: str) -> None:
    """Refuse a torch that is too old, naming both versions.

    >>> check_torch("2.13.0+cpu")
    >>> check_torch("1.10.0")
    Traceback (most recent call last):
    ...
    AssertionError: poptorch needs torch 2.13 or newer, but torch 1.10.0 is installed. ...
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) < MINIMUM_TORCH:
        needed = ".".join(map(str, MINIMUM_TORCH))
        raise AssertionError(
            f"poptorch needs torch {needed} or newer, but torch {version} is installed. "
            f"Install a newer one: pip install 'torch>={needed}'"
        )


def enable_fault_reports() -> None:
    """Print Python stacks when the process crashes or is asked to terminate, before it does."""
    try:
        if not faulthandler.is_enabled():
            faulthandler.enable()
        if hasattr(faulthandler, "register"):  # not on Windows
            faulthandler.register(signal.SIGTERM, chain=True)
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        # Notebooks and embedded interpreters have a stderr without a file descriptor.
        logger.debug("Crash reports are off: sys.stderr is no real file (%s)", error)


_previous_hook = sys.__excepthook__


def log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an uncaught exception as one critical line with its traceback.

    A hook that someone else installed before this package is called as well; Python's own is replaced.
    """
    summary = traceback.format_exception_only(kind, error)[-1].rstrip("\n")
    text = summary + "\n" + "".join(traceback.format_exception(kind, error, trace))
    if isinstance(error, subprocess.CalledProcessError):
        text += _output_of(error)
    text = text.rstrip("\n")
    if _logger_stream_is_closed():
        print(text, file=sys.__stderr__)
    else:
        logger.log(logging.CRITICAL, "%s", text)
    if _previous_hook is not sys.__excepthook__:
        _previous_hook(kind, error, trace)


def _output_of(error: subprocess.CalledProcessError) -> str:
    output = error.stderr or error.stdout or ""
    return output.decode(errors="replace") if isinstance(output, bytes) else str(output)


def _logger_stream_is_closed() -> bool:
    streams = [handler.stream for handler in logger.handlers if isinstance(handler, logging.StreamHandler)]
    return any(getattr(stream, "closed", False) for stream in streams)
