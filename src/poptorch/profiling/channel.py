"""Channels: named series of timed spans, kept in memory while ``PVTI_OPTIONS`` enables them."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from poptorch import environment
from poptorch.errors import createPoptorchError
from poptorch.profiling.trace import NO_TRACE, SpanKind, Trace, TraceSpan

T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """One span: what ran, on which thread, from when to when (``time.perf_counter_ns``)."""

    name: str
    thread: int
    start_ns: int
    end_ns: int


class Channel:
    """A named source of trace points; its methods do nothing unless ``PVTI_OPTIONS`` enables profiling.

    Channels with the same name share their records.

    >>> channel = Channel("my program")
    >>> with channel.tracepoint("load"):
    ...     data = list(range(10))
    >>> len(channel.records)  # PVTI_OPTIONS is not set here
    0
    """

    _shared: ClassVar[dict[str, list[Record]]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str) -> None:
        self.name = name
        with Channel._lock:
            self._records = Channel._shared.setdefault(name, [])

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
            span = Record(f"{self.name}.{name}", threading.get_ident(), start, time.perf_counter_ns())
            self._records.append(span)

    def trace(self) -> Trace:
        """A trace whose spans become records of this channel, if ``PVTI_OPTIONS`` enables profiling."""
        return _ChannelTrace(self) if enabled else NO_TRACE

    def keep(self, name: str, start: float, end: float) -> None:
        """Take a span that was timed already, in seconds of ``time.perf_counter``."""
        thread = threading.get_ident()
        self._records.append(Record(f"{self.name}.{name}", thread, round(start * 1e9), round(end * 1e9)))

    def instrument(self, obj: T, *methods: str) -> T:
        """Time every call of the named methods of ``obj``; returns ``obj``."""
        if enabled:
            for method in methods:
                setattr(obj, method, self._timed(getattr(obj, method), method))
        return obj

    def _timed(self, function: Any, name: str) -> Any:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return function(*args, **kwargs)

        return timed


class _ChannelTrace(Trace):
    """Puts every span into a channel, under the name of its kind."""

    active = True

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def span(
        self, kind: SpanKind, part: int = 0, micro: int = 0, replica: int = 0, worker: int = 0, label: str = ""
    ) -> AbstractContextManager[None]:
        """Time the enclosed code."""
        return self._channel.tracepoint(label or kind.value)

    def add(self, span: TraceSpan) -> None:
        """Keep a span."""
        self._channel.keep(span.label or span.kind.value, span.start, span.end)


def is_requested(options: str | None) -> bool:
    """Whether the text of ``PVTI_OPTIONS`` asks for profiling.

    >>> is_requested('{"enable":"true"}')
    True
    >>> is_requested(None)
    False
    """
    if not options:
        return False
    try:
        parsed = json.loads(options)
    except json.JSONDecodeError as error:
        raise createPoptorchError(_malformed(options, str(error))) from None
    if not isinstance(parsed, dict):
        raise createPoptorchError(_malformed(options, "it is not an object"))
    return str(parsed.get("enable", "false")).lower() == "true"


def _malformed(options: str, reason: str) -> str:
    return f'PVTI_OPTIONS must be a JSON object such as {{"enable":"true"}}; {options!r} is none: {reason}'


enabled = is_requested(environment.PVTI_OPTIONS.read())
"""Whether channels record; decided when the package is imported."""
