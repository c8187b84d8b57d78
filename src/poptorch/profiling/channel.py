"""Channels: named series of timed spans, written to a trace while ``PVTI_OPTIONS`` enables them."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from poptorch import environment
from poptorch.profiling.requests import trace_request
from poptorch.profiling.trace import NO_TRACE, ActiveTrace, SpanKind, Trace, TraceSpan
from poptorch.profiling.trace_file import Entry, TraceFile, entry_of, event_name, nanoseconds

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_KEPT = 1 << 16
"""How many records of a channel stay in memory."""


class Record(NamedTuple):
    """One span: what ran, on which thread, from when to when (``time.perf_counter_ns``)."""

    name: str
    thread: int
    start_ns: int
    end_ns: int


class Channel:
    """A named source of trace points; its methods do nothing unless ``PVTI_OPTIONS`` enables profiling.

    Channels with the same name share their records. The latest ones can be read; all of them are in the trace file.

    >>> channel = Channel("my program")
    >>> with channel.tracepoint("load"):
    ...     data = list(range(10))
    >>> len(channel.records)  # PVTI_OPTIONS is not set here
    0
    """

    _shared: ClassVar[dict[str, deque[Entry]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str) -> None:
        self.name = name
        with Channel._lock:
            self._entries = Channel._shared.setdefault(name, deque(maxlen=_KEPT))
        self._trace = _ChannelTrace(self)

    @property
    def records(self) -> tuple[Record, ...]:
        """The spans recorded so far under this channel's name, in the order in which they ended."""
        return tuple(
            Record(event_name(channel, kind, label), thread, nanoseconds(start), nanoseconds(end))
            for channel, thread, kind, start, end, *_, label in tuple(self._entries)
        )

    def tracepoint(self, name: str) -> AbstractContextManager[None]:
        """Time the enclosed code under ``<channel name>.<name>``, also when it raises."""
        return self.trace().span(SpanKind.POINT, label=name)

    def trace(self) -> Trace:
        """A trace whose spans become records of this channel, if ``PVTI_OPTIONS`` enables profiling."""
        return self._trace if enabled else NO_TRACE

    def keep(self, span: TraceSpan) -> None:
        """Take a span that was timed already."""
        entry = entry_of(self.name, span.thread or get_ident(), span)
        self._entries.append(entry)
        if trace_file is not None:
            trace_file.add(entry)

    def instrument(self, obj: T, *methods: str) -> T:
        """Time every call of the named methods of ``obj``; returns ``obj``."""
        if enabled:
            for method in methods:
                setattr(obj, method, self.timed(getattr(obj, method), method))
        return obj

    def timed(self, function: F, name: str) -> F:
        """A function whose calls are timed under this name."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return function(*args, **kwargs)

        return cast(F, timed)


class _ChannelTrace(ActiveTrace):
    """Puts every span into a channel, under the name of its kind."""

    def __init__(self, channel: Channel) -> None:
        self.add = channel.keep  # type: ignore[method-assign]  # without a call between: many spans come in each call


request = trace_request(environment.PVTI_OPTIONS.read())
enabled = request.enabled
"""Whether channels record; decided when the package is imported."""

trace_file: TraceFile | None = TraceFile(request.directory) if enabled else None
"""Where the spans of all channels go."""
