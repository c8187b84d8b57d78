"""Ctrl-C in a process that uses the package: it is never lost, and the end of the program comes soon."""

from __future__ import annotations

import _thread
import atexit
import gc
import io
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_AGAIN_AFTER_S = 0.001
"""How long to wait before a lost interrupt is raised again; it may be lost again, and is then raised once more."""


def prepare_interrupts() -> None:
    """Watch for interrupts that get lost, and shorten the end of programs that one has ended. Twice is as once."""
    if sys.unraisablehook is not raise_again:
        global _previous_hook
        _previous_hook = sys.unraisablehook
        sys.unraisablehook = raise_again
    atexit.unregister(leave_soon)
    atexit.register(leave_soon)


_previous_hook: Callable[[Any], object] = sys.__unraisablehook__


def raise_again(lost: Any) -> None:
    """Raise an interrupt once more that came where Python drops exceptions.

    Those places are the callbacks of weak references, ``__del__`` methods and functions that C code calls. Any of them
    may be what the main thread is doing when the user presses Ctrl-C: to end an iterator over workers takes a while.
    """
    is_main = threading.get_ident() == threading.main_thread().ident
    handled = callable(signal.getsignal(signal.SIGINT))
    if not (is_main and handled and issubclass(lost.exc_type, KeyboardInterrupt)) or sys.is_finalizing():
        _previous_hook(lost)
        return
    # From another thread, because this one is still where exceptions are dropped.
    _thread.start_new_thread(_interrupt_soon, (threading.get_ident(),))


def _interrupt_soon(main: int) -> None:
    time.sleep(_AGAIN_AFTER_S)
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # a signal, because it also ends what the main thread waits for
    else:
        _thread.interrupt_main()


def leave_soon() -> None:
    """At exit: spare a program that an uncaught Ctrl-C has ended the search for cyclic garbage.

    The interpreter looks through all objects several times before it ends, and those of torch and its libraries are
    hundreds of thousands: seconds on a busy machine. Files that are still open are written out before. Finalisers of
    objects in cycles are not called, which Python does not promise either.
    """
    sys.unraisablehook = _previous_hook  # the interpreter takes modules apart soon, this one as well
    interactive = bool(sys.flags.interactive) or hasattr(sys, "ps1")
    if interactive or not issubclass(getattr(sys, "last_type", None) or object, KeyboardInterrupt):
        return
    _flush_open_files()
    gc.freeze()


_FILES = frozenset({io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom})


def _flush_open_files() -> None:
    """Write out what Python holds of open files; those for text first, because they write to the others."""
    # In few steps, none of them Python: while the list exists, other threads cannot finish tuples that they are making.
    everything = gc.get_objects()
    found = list(itertools.compress(everything, map(_FILES.__contains__, map(type, everything))))
    del everything
    for file in sorted(found, key=lambda file: not isinstance(file, io.TextIOWrapper)):
        try:
            if not file.closed:
                file.flush()
        except (OSError, ValueError):  # as at the end of any program: a full disk, a pipe that nobody reads
            continue
