"""PopRun's own messages, on standard error: ``HH:MM:SS.mmm pid POPRUN [L] text``."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Log:
    """Errors and warnings are always shown, information and debug messages on request."""

    information: bool = False
    debugging: bool = False

    def error(self, text: str) -> None:
        """What ends the job."""
        _write("E", text)

    def warning(self, text: str) -> None:
        """What the user should know in any case."""
        _write("W", text)

    def info(self, text: str) -> None:
        """What PopRun does."""
        if self.information or self.debugging:
            _write("I", text)

    def debug(self, text: str) -> None:
        """Why, and how."""
        if self.debugging:
            _write("D", text)


def _write(level: str, text: str) -> None:
    now = time.time()
    moment = time.strftime("%H:%M:%S", time.localtime(now))
    sys.stderr.write(f"{moment}.{int(now * 1000) % 1000:03d} {os.getpid()} POPRUN [{level}] {text}\n")
    sys.stderr.flush()
