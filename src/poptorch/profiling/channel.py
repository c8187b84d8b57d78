"""Channels: named series of timed spans, written to a trace while ``PVTI_OPTIONS`` enables them."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from poptorch import environment
from poptorch.profiling.requests import trace_request
from poptorch.profiling.trace import NO_TRACE, SpanKind, Trace, TraceSpan
from poptorch.profiling.trace_file import Event, TraceFile

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_KEPT = 1 << 16
"""How many records of a channel stay in memory."""


@dataclass(frozen=True)
class Record:
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

    _shared: ClassVar[dict[str, deque[Record]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str) -> None:
        self.name = name
        with Channel._lock:
            self._records = Channel._shared.setdefault(name, deque(maxlen=_KEPT))

    @property
    def records(self) -> tuple[Record, ...]:
        """The spans recorded so far under this channel's name, in the order in which they ended."""
        return tuple(self._records)

    @contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """Time the enclosed code under ``<channel name>.<name>``, also when it raises."""
        if not enabled:
            yield
            return
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self._keep(Record(f"{self.name}.{name}", threading.get_ident(), start, time.perf_counter_ns()))

    def trace(self) -> Trace:
        """A trace whose spans become records of this channel, if ``PVTI_OPTIONS`` enables profiling."""
        return _ChannelTrace(self) if enabled else NO_TRACE

    def keep(self, span: TraceSpan) -> None:
        """Take a span that was timed already."""
        kind = span.kind
        thread = span.thread or threading.get_ident()
        record = Record(
            f"{self.name}.{span.label or kind.value}", thread, round(span.start * 1e9), round(span.end * 1e9)
        )
        about = {"part": span.part, "micro_batch": span.micro, "replica": span.replica, "worker": span.worker}
        self._keep(record, about if kind not in _PLAIN else {}, overlaps=kind in (SpanKind.INPUT, SpanKind.OUTPUT))

    def _keep(self, record: Record, details: Mapping[str, int] = {}, *, overlaps: bool = False) -> None:
        self._records.append(record)
        if trace_file is not None:
            trace_file.add(
                Event(record.name, self.name, record.thread, record.start_ns, record.end_ns, details, overlaps)
            )

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


_PLAIN = frozenset({
    SpanKind.PASS, SpanKind.COMPILE, SpanKind.EXCHANGE, SpanKind.UPDATE, SpanKind.WEIGHTS_TO_DEVICE,
    SpanKind.WEIGHTS_TO_HOST,
})  # fmt: skip
"""What belongs to no part and no micro-batch."""


class _ChannelTrace(Trace):
    """Puts every span into a channel, under the name of its kind."""

    active = True

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @contextmanager
    def _timed(self, kind: SpanKind, *about: Any) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(TraceSpan(kind, start, time.perf_counter(), *about))

    def span(
        self, kind: SpanKind, part: int = 0, micro: int = 0, replica: int = 0, worker: int = 0, label: str = ""
    ) -> AbstractContextManager[None]:
        """Time the enclosed code."""
        return self._timed(kind, part, micro, replica, worker, label)

    def add(self, span: TraceSpan) -> None:
        """Keep a span."""
        self._channel.keep(span)


request = trace_request(environment.PVTI_OPTIONS.read())
enabled = request.enabled
"""Whether channels record; decided when the package is imported."""

trace_file: TraceFile | None = TraceFile(request.directory) if enabled else None
"""Where the spans of all channels go."""
