"""Spans of time: what was done, for which part, micro-batch and replica, by which worker, from when to when.

The compiler and the runtime tell a trace of every pass, job, update, input and output. A :class:`Trace` forgets them;
a :class:`Recorder` keeps them. Spans of jobs come from the records of ``runtime.clock``, as counters and pictures do.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, NamedTuple


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

    POINT = "point"
    """What a program times itself with a channel, under a label of its own."""


class TraceSpan(NamedTuple):
    """One span; times in seconds from an arbitrary origin (``time.perf_counter``).

    Many are made for each call of a model, so they are tuples, which cost the least.
    """

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


class _Timer:
    """Times the code of a ``with`` block, also when it raises, and hands the span to a trace."""

    __slots__ = ("_about", "_kind", "_start", "_trace")

    def __init__(self, trace: Trace, kind: SpanKind, *about: Any) -> None:
        self._trace = trace
        self._kind = kind
        self._about = about

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *error: object) -> None:
        self._trace.add(TraceSpan(self._kind, self._start, perf_counter(), *self._about))


class ActiveTrace(Trace):
    """A trace that takes the spans of the code that it times; what happens to them is said in :meth:`add`."""

    active = True

    def span(
        self, kind: SpanKind, part: int = 0, micro: int = 0, replica: int = 0, worker: int = 0, label: str = ""
    ) -> AbstractContextManager[None]:
        """Time the enclosed code, also when it raises."""
        return _Timer(self, kind, part, micro, replica, worker, label)


class Recorder(ActiveTrace):
    """Keeps all spans until :meth:`clear`. Any thread may add some.

    >>> trace = Recorder()
    >>> with trace.span(SpanKind.UPDATE, replica=1):
    ...     pass
    >>> [(span.kind.value, span.replica) for span in trace.spans]
    [('update', 1)]
    """

    def __init__(self) -> None:
        self._spans: list[TraceSpan] = []

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


class Listeners(ActiveTrace):
    """The trace of an engine: hands each span to those that listen, the one that the user chose and others for a time.

    >>> trace, recorder = Listeners(), Recorder()
    >>> with trace.also(recorder), trace.span(SpanKind.UPDATE):
    ...     pass
    >>> len(recorder.spans), trace.active
    (1, False)
    """

    active = False

    def __init__(self) -> None:
        self._chosen = NO_TRACE
        self._others: tuple[Trace, ...] = ()

    def listen(self, trace: Trace) -> None:
        """From here on, spans go to this one in place of the one before."""
        self._chosen = trace
        self._changed()

    @contextlib.contextmanager
    def also(self, trace: Trace) -> Iterator[None]:
        """Spans of the enclosed code go to this one, too."""
        before, self._others = self._others, (*self._others, trace)
        self._changed()
        try:
            yield
        finally:
            self._others = before
            self._changed()

    def _changed(self) -> None:
        self.active = any(trace.active for trace in (self._chosen, *self._others))

    def span(
        self, kind: SpanKind, part: int = 0, micro: int = 0, replica: int = 0, worker: int = 0, label: str = ""
    ) -> AbstractContextManager[None]:
        """Time the enclosed code, if anybody listens."""
        return super().span(kind, part, micro, replica, worker, label) if self.active else _NOTHING

    def add(self, span: TraceSpan) -> None:
        """Hand a span to all."""
        for trace in (self._chosen, *self._others):
            trace.add(span)

    @property
    def spans(self) -> tuple[TraceSpan, ...]:
        """What the user's trace kept."""
        return self._chosen.spans


NO_TRACE = Trace()
"""The trace of everything that is not watched."""
