"""Imported by Python's fork server only: what all background processes have in common, loaded once."""

from __future__ import annotations

import atexit
import os
import signal

from poptorch.data import background

__all__ = ["background"]

# The server holds no state, and taking down an interpreter with torch in it can take more than a second:
# after Ctrl-C everything has to be gone by then. Processes that the server forks do not come along here.
atexit.register(os._exit, 0)

# Held back while this was being imported. From here on the server ignores Ctrl-C anyway; what it forks does not.
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
