"""Torch's tracer patches modules of the whole process: one thread at a time may use it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch.fx._lazy_graph_module import _use_lazy_graph_module

_lock = threading.RLock()
"""Re-entrant, because a compile hook may compile another model."""


@contextmanager
def tracing() -> Iterator[None]:
    """The thread's turn to trace; graphs that are made meanwhile compile no Python code of their own."""
    with _lock, _use_lazy_graph_module(True):
        yield
