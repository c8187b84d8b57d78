"""The memory of activations: kept by the process between calls, as a device keeps its own.

The C library gives the free end of its heap back to the system. A program that allocates the same activations in every
call would then have the same pages cleared and mapped again each time, which costs up to a tenth of a training step.
"""

from __future__ import annotations

import ctypes
import functools
import sys

from poptorch import environment
from poptorch._logging import logger

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT_BYTES = 1 << 30


@functools.cache
def keep_freed_memory() -> bool:
    """Let the C library keep what is freed, up to 1 GiB; once per process. Returns whether it could be told so."""
    if not sys.platform.startswith("linux") or not environment.KEEP_MEMORY.read():
        return False
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is None:  # another C library
        return False
    done = bool(adjust(_M_MMAP_THRESHOLD, _KEPT_BYTES)) and bool(adjust(_M_TRIM_THRESHOLD, _KEPT_BYTES))
    logger.debug("Freed memory is %s", "kept for the next call" if done else "given back to the system")
    return done
