"""How a command ends: with its status, with our error on standard error, or quietly when its reader has gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from poptorch.errors import Error


def ended(body: Callable[[], int]) -> int:
    """Run a command; returns the exit status.

    >>> ended(lambda: 3)
    3
    """
    try:
        status = body()
        sys.stdout.flush()
    except Error as problem:
        print(problem.message, file=sys.stderr)  # without the prefix that programs look at
        return 1
    except BrokenPipeError:
        # The reader has seen enough (`… | head`); Python would complain when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status
