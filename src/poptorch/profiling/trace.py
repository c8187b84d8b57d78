"""Spans of time: what was done, for which part, micro-batch and replica, by which worker, from when to when.

The compiler and the runtime put a span around every pass, job, update, input and output. A :class:`Trace` forgets them;
a :class:`Recorder` keeps them. Schedule pictures, counters and channels of trace points are made of the same spans.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass


class SpanKind(enum.Enum):
    """What is done in a span."""

    PASS = "pass"
    """A pass of the compiler over the program."""

    COMPILE = "compile"
    """Another part of a compilation: capture, code for the host, native code."""

    INPUT = "input"
    """The inputs of a micro-batch come to the device."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"
    """A whole model at once: forward, and in training backward."""

    LOAD = "load"
    """A phase comes from streaming memory."""

    STORE = "store"
    """A phase goes to streaming memory."""

    OUTPUT = "output"
    """The outputs of a micro-batch go to the host."""

    LEFTOVER = "leftover"
    """Work that a job left to idle workers: products of gradients."""

    EXCHANGE = "exchange"
    """Gradients are reduced between processes."""

    UPDATE = "update"
    WEIGHTS_TO_DEVICE = "weights to device"
    """All parameters and buffers of the model are copied."""

    WEIGHTS_TO_HOST = "weights to host"
    """All parameters and buffers are copied back: for the first look at one of them after training, or on request."""


@dataclass(frozen=True)
class TraceSpan:
    """One span; times in seconds from an arbitrary origin (``time.perf_counter``)."""

    kind: SpanKind
    start: float
    end: float
    part: int = 0
    micro: int = 0
    """The micro-batch, counted within a round of accumulation; of a group, the first one."""

    replica: int = 0
    worker: int = 0
    label: str = ""
    """For people: the name of a pass, the parameter of an update."""

    thread: int = 0
    """The thread (``threading.get_ident``) on which it ran, where that is another one than the one that tells."""


_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


class Trace:
    """Keeps nothing: the trace of a program that is not watched.

    >>> with Trace().span(SpanKind.UPDATE):
    ...     pass
    """

    active = False
    """To be asked where preparing a span costs time."""

    def span(
        self, kind: SpanKind, part: int = 0, micro: int = 0, replica: int = 0, worker: int = 0, label: str = ""
    ) -> AbstractContextManager[None]:
        """Time the enclosed code."""
        return _NOTHING

    def add(self, span: TraceSpan) -> None:
        """Take a span that was timed already."""

    @property
    def spans(self) -> tuple[TraceSpan, ...]:
        """What was kept, in the order in which spans ended."""
        return ()


class Recorder(Trace):
    """Keeps all spans until :meth:`clear`. Any thread may add some.

    >>> trace = Recorder()
    >>> with trace.span(SpanKind.UPDATE, replica=1):
    ...     pass
    >>> [(span.kind.value, span.replica) for span in trace.spans]
    [('update', 1)]
    """

    active = True

    def __init__(self) -> None:
        self._spans: list[TraceSpan] = []

    def span(
        self, kind: SpanKind, part: int = 0, micro: int = 0, replica: int = 0, worker: int = 0, label: str = ""
    ) -> AbstractContextManager[None]:
        """Time the enclosed code, also when it raises."""
        return self._timed(kind, part, micro, replica, worker, label)

    @contextlib.contextmanager
    def _timed(
        self, kind: SpanKind, part: int, micro: int, replica: int, worker: int, label: str
    ) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(TraceSpan(kind, start, time.perf_counter(), part, micro, replica, worker, label))

    def add(self, span: TraceSpan) -> None:
        """Keep a span."""
        self._spans.append(span)

    @property
    def spans(self) -> tuple[TraceSpan, ...]:
        """All spans so far, in the order in which they ended."""
        return tuple(self._spans)

    def clear(self) -> None:
        """Forget all spans."""
        self._spans.clear()


NO_TRACE = Trace()
"""The trace of everything that is not watched."""
