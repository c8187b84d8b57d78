"""Three loggers: the Python side, the backend, and the compiler below it.

``logger`` carries what the Python API has to say, ``backend`` what happens while a program is compiled and
run (with a level ``trace`` below ``debug``), ``compiler`` the details of single compiler passes. The first
two follow :func:`setLogLevel`, the last one :func:`setPopartLogLevel`.

>>> setLogLevel("ERR")
>>> logger.isEnabledFor(logging.WARNING)
False
>>> setLogLevel("WARN")
"""

from __future__ import annotations

import logging
import os  # environment.py reports its errors through errors.py, which logs: this module has to come first
import sys
import threading
from collections.abc import Hashable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO

from poptorch.frames import warn_user

TRACE = 5
"""Numeric level of ``trace``, which Python's own ``logging`` lacks."""

UNLIMITED_REPEATS = 2**64 - 1
"""The stored form of "no cap" in ``Options.max_repeat_logs``."""

DEFAULT_REPEAT_LIMIT = 4

logging.addLevelName(TRACE, "TRACE")

_SILENT = logging.CRITICAL + 10


class _Levels(NamedTuple):
    python: int
    backend: int
    number: int | None


_LEVELS: Mapping[str, _Levels] = MappingProxyType(
    {
        "TRACE": _Levels(logging.DEBUG, TRACE, 0),
        "TRACE_ALL": _Levels(logging.DEBUG, TRACE, None),
        "DEBUG": _Levels(logging.DEBUG, logging.DEBUG, 1),
        "DEBUG_IR": _Levels(logging.DEBUG, logging.DEBUG, None),
        "INFO": _Levels(logging.INFO, logging.INFO, 2),
        "WARN": _Levels(logging.WARNING, logging.WARNING, 3),
        "ERR": _Levels(logging.ERROR, logging.ERROR, 4),
        "OFF": _Levels(logging.CRITICAL, _SILENT, 6),
    }
)
_NAME_OF_NUMBER = {levels.number: name for name, levels in _LEVELS.items() if levels.number is not None}
_ADVERTISED = "DEBUG, ERR, INFO, OFF, TRACE and WARN"

_CYAN, _GREY, _BOLD_YELLOW, _BOLD_RED, _RESET = "\x1b[36m", "\x1b[90m", "\x1b[33;1m", "\x1b[31;1m", "\x1b[0m"
_COLOUR_OF_LEVEL = {
    TRACE: _GREY,
    logging.DEBUG: _CYAN,
    logging.WARNING: _BOLD_YELLOW,
    logging.ERROR: _BOLD_RED,
    logging.CRITICAL: _BOLD_RED,
}


# --- how a line looks ---------------------------------------------------------------------------------------


def _may_colour() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))


class _LineFormatter(logging.Formatter):
    """``[HH:MM:SS.mmm] [logger] [level] message`` in local time, the level coloured on terminals."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        level = record.levelname.lower()
        colour = _COLOUR_OF_LEVEL.get(record.levelno)
        if colour is not None and _may_colour():
            level = f"{colour}{level}{_RESET}"
        when = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        line = f"[{when}] [{record.name}] [{level}] {record.message}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


# --- where a line goes --------------------------------------------------------------------------------------


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever ``sys.stderr`` is when the line is written, unless ``setStream`` chose otherwise."""

    def __init__(self) -> None:
        self._chosen: TextIO | None = None
        super().__init__()
        self._chosen = None  # StreamHandler stored today's sys.stderr; tests and notebooks replace it later

    @property
    def stream(self) -> TextIO:
        return self._chosen if self._chosen is not None else sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        self._chosen = value


class _BackendHandler(logging.StreamHandler[TextIO]):
    """Writes to the destination named by ``POPTORCH_LOG_DEST``, looked up at the first line."""

    def __init__(self) -> None:
        self._destination: str | None = None
        self._file: TextIO | None = None
        super().__init__()

    @property
    def stream(self) -> TextIO:
        if self._destination is None:
            self._open(os.environ.get("POPTORCH_LOG_DEST") or "stderr")
        if self._file is not None:
            return self._file
        return sys.stdout if self._destination == "stdout" else sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """The base constructor offers ``sys.stderr``; the destination is looked up when it is needed."""

    def _open(self, destination: str) -> None:
        if destination not in ("stdout", "stderr"):
            try:
                self._file = open(destination, "w", encoding="utf-8")  # noqa: SIM115 - stays open for the process
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"POPTORCH_LOG_DEST names a log file that cannot be opened ({error.strerror}). Set it to "
                    "'stderr', 'stdout' or to a file in a writable directory",
                    destination,
                ) from error
        self._destination = destination

    def emit(self, record: logging.LogRecord) -> None:
        _ = self.stream  # a destination that cannot be opened is fatal, so it must not end in handleError()
        super().emit(record)


# --- how often a line is repeated ---------------------------------------------------------------------------


class _RepeatFilter(logging.Filter):
    """Drops a line that follows itself more often than the limit, after saying so once."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = DEFAULT_REPEAT_LIMIT
        self._lock = threading.Lock()
        self._last: tuple[str, int, str] | None = None
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        line = (record.name, record.levelno, record.getMessage())
        with self._lock:
            self._count = self._count + 1 if line == self._last else 1
            self._last = line
            excess = self._count - self.limit
        if excess == 1:
            record.msg, record.args = "[repeated messages suppressed]", None
        return excess <= 1

    def restart(self, limit: int) -> None:
        with self._lock:
            self.limit = limit
            self._last, self._count = None, 0


# --- one name for all ----------------------------------------------------------------------------------------


class _PackageFilter(logging.Filter):
    """Asks ``logging.getLogger("poptorch")``: its level, its filters and ``disabled`` hold for all our loggers, which
    it is not the parent of, because their names have no dots."""

    def filter(self, record: logging.LogRecord) -> bool:
        package = logging.getLogger("poptorch")
        return not package.disabled and record.levelno >= package.level and bool(package.filter(record))


_package_filter = _PackageFilter()


# --- the loggers --------------------------------------------------------------------------------------------


class BackendLogger(logging.Logger):
    """A logger with the extra level ``trace``, for the parts that compile and run programs."""

    def isEnabledFor(self, level: int) -> bool:
        """Compare with the level itself: the base class caches answers, and clears the cache of registered
        loggers only."""
        return level >= self.level and level > self.manager.disable

    def trace(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log ``msg % args`` below ``debug``."""
        if self.isEnabledFor(TRACE):
            self._log(TRACE, msg, args, **kwargs)


_python_handler = _StderrHandler()
_backend_handler = _BackendHandler()
_repeats = _RepeatFilter()


def _make_python_logger() -> logging.Logger:
    made = logging.getLogger("poptorch::python")
    _python_handler.setFormatter(_LineFormatter())
    made.handlers = [_python_handler]  # importing the package again must not add a second one
    made.filters = [_package_filter]
    return made


def _make_backend_logger(name: str) -> BackendLogger:
    # Not registered with logging.getLogger: these lines go to their own destination and to no root handler.
    made = BackendLogger(name)
    made.propagate = False
    made.addFilter(_package_filter)
    made.addFilter(_repeats)
    made.addHandler(_backend_handler)
    return made


_backend_handler.setFormatter(_LineFormatter())
logger = _make_python_logger()
backend = _make_backend_logger("poptorch:cpp")
compiler = _make_backend_logger("popart:ir")

_said: set[Hashable] = set()
_said_lock = threading.Lock()
_from_environment = "WARN"


# --- levels -------------------------------------------------------------------------------------------------


def setLogLevel(level: str | int, update_cpp: bool = True) -> None:
    """Choose what the package reports: ``TRACE``, ``DEBUG``, ``INFO``, ``WARN``, ``ERR`` or ``OFF``.

    The numbers 0 to 4 and 6 of early releases mean the same levels in that order. The level holds for the
    Python side and, unless ``update_cpp`` is false, for the backend, in all threads, until it is set again.

    >>> setLogLevel("INFO")
    >>> setLogLevel(3)  # WARN
    >>> setLogLevel("loud")
    Traceback (most recent call last):
    ...
    ValueError: Unknown log level: loud. Valid values are DEBUG, ERR, INFO, OFF, TRACE and WARN
    """
    if isinstance(level, int) and not isinstance(level, bool):
        if level not in _NAME_OF_NUMBER:
            valid = ", ".join(f"{number} ({name})" for number, name in sorted(_NAME_OF_NUMBER.items()))
            raise ValueError(f"Invalid log level integer {level}. Valid values are {valid}")
        level = _NAME_OF_NUMBER[level]
    levels = _LEVELS.get(level) if isinstance(level, str) else None
    if levels is None:
        raise ValueError(f"Unknown log level: {level}. Valid values are {_ADVERTISED}")
    logger.setLevel(levels.python)
    if update_cpp:
        backend.setLevel(levels.backend)


def setPopartLogLevel(level: str) -> None:
    """Choose how much the compiler says about its single passes; starts at ``WARN``.

    >>> setPopartLogLevel("TRACE")
    >>> compiler.isEnabledFor(TRACE)
    True
    >>> setPopartLogLevel("WARN")
    """
    levels = _LEVELS.get(level) if isinstance(level, str) else None
    if levels is None:
        raise ValueError(f"Level must be one of {', '.join(_LEVELS)}; got {level!r}")
    compiler.setLevel(levels.backend)


def contexts_are_traced() -> bool:
    """Whether ``POPTORCH_LOG_LEVEL=TRACE_ALL`` asks for a line at each internal context entered and left."""
    return _from_environment == "TRACE_ALL"


def ir_is_dumped() -> bool:
    """Whether ``POPTORCH_LOG_LEVEL=DEBUG_IR`` asks for the program after each compile."""
    return _from_environment == "DEBUG_IR"


def apply_environment() -> None:
    """Take the level from ``POPTORCH_LOG_LEVEL``; done when the package is imported."""
    global _from_environment
    text = os.environ.get("POPTORCH_LOG_LEVEL", "WARN")
    level = text.upper()
    if level not in _LEVELS:
        raise ValueError(
            f"Unknown log level: {text}. Valid values are {_ADVERTISED}. It comes from the environment "
            "variable POPTORCH_LOG_LEVEL: unset it or use one of these names"
        )
    _from_environment = level
    setLogLevel(level)
    setPopartLogLevel("WARN")


# --- saying things once or a few times ----------------------------------------------------------------------


def set_repeat_limit(limit: int | None) -> None:
    """Print a backend line at most ``limit`` times in a row (``None``: always), counting from now."""
    _repeats.restart(UNLIMITED_REPEATS if limit is None else limit)


def log_once(level: int, key: Hashable, message: str) -> None:
    """Log ``message`` on the Python side unless something with the same ``key`` was logged at this level."""
    with _said_lock:
        if (level, key) in _said:
            return
        _said.add((level, key))
    logger.log(level, "%s", message)


def warn_once(key: Hashable, message: str) -> None:
    """Warn about ``message`` the first time that ``key`` is seen in this process."""
    log_once(logging.WARNING, key, message)


def warn_deprecated(old: str, new: str) -> None:
    """Say in the log, and with a ``DeprecationWarning`` at the user's line, that ``old`` is of an earlier release."""
    text = f"{old} comes from an earlier release: use {new}."
    logger.warning("[Deprecated] %s", text)
    warn_user(text, DeprecationWarning)


def forget_said() -> None:
    """Let :func:`log_once` and :func:`warn_once` speak again; for tests."""
    with _said_lock:
        _said.clear()


apply_environment()
