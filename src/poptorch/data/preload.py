"""Imported by Python's fork server only: what all background processes have in common, loaded once."""

from __future__ import annotations

import atexit
import os

from poptorch.data import background

__all__ = ["background"]

# The server holds no state, and taking down an interpreter with torch in it can take more than a second:
# after Ctrl-C everything has to be gone by then. Processes that the server forks do not come along here.
atexit.register(os._exit, 0)
