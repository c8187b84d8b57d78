"""The trace of a process as a file in Chrome's JSON format, which chrome://tracing and ui.perfetto.dev open.

The file is an array of events. It is complete JSON whenever nothing is being written: each flush takes the closing
bracket away, adds events and puts the bracket back. So a process that is killed leaves what it flushed.
"""

from __future__ import annotations

import atexit
import datetime
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import TypeAlias

from poptorch._logging import logger
from poptorch.profiling.trace import SpanKind, TraceSpan
from poptorch_files import create, extend

_FLUSH_AT = 20_000
"""How many events wait in memory, at most."""

_END = "\n]\n"


Entry: TypeAlias = tuple[str, int, str, float, float, int, int, int, int, str]
"""A span: channel, thread, kind, start, end, part, micro-batch, replica, worker, label.

Numbers and texts only: Python's garbage collector forgets such tuples, however many there are.
"""

_PLAIN = frozenset(kind.value for kind in (
    SpanKind.PASS, SpanKind.COMPILE, SpanKind.EXCHANGE, SpanKind.UPDATE, SpanKind.WEIGHTS_TO_DEVICE,
    SpanKind.WEIGHTS_TO_HOST, SpanKind.POINT,
))  # fmt: skip
"""What belongs to no part and no micro-batch."""

_OVERLAPPING = frozenset((SpanKind.INPUT.value, SpanKind.OUTPUT.value))
"""What may begin or end in the middle of other spans of its thread: it is drawn on a line of its own."""


def entry_of(channel: str, thread: int, span: TraceSpan) -> Entry:
    """A span of a channel that ran on a thread."""
    kind, start, end, part, micro, replica, worker, label, _ = span
    return channel, thread, kind._value_, start, end, part, micro, replica, worker, label


def event_name(channel: str, kind: str, label: str) -> str:
    """The name of a span for people.

    >>> event_name("mine", "point", "load"), event_name("mine", "update", "")
    ('mine.load', 'mine.update')
    """
    return f"{channel}.{label or kind}"


def nanoseconds(seconds: float) -> int:
    """A time of ``time.perf_counter`` as ``time.perf_counter_ns`` gives it."""
    return round(seconds * 1e9)


class TraceFile:
    """Collects the events of a process and writes them, at the latest when the process ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reset()
        atexit.register(self.flush)
        self._flush_with_worker()
        util.register_after_fork(self, TraceFile._flush_with_worker)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _flush_with_worker(self) -> None:
        """Processes of ``multiprocessing`` end without the usual handlers, but call those of that module."""
        util.Finalize(None, self.flush, exitpriority=0)

    def _reset(self) -> None:
        """A new process has a file of its own."""
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._path: Path | None = None
        self._status: os.stat_result | None = None
        self._named: set[int] = set()
        self._numbers = itertools.count(1)
        self._broken = False

    @property
    def path(self) -> Path | None:
        """The file of this process; ``None`` as long as nothing was written."""
        return self._path

    def add(self, entry: Entry) -> None:
        """Take a span of any thread."""
        entries = self._entries
        entries.append(entry)
        if len(entries) >= _FLUSH_AT:
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        with self._lock:
            entries, self._entries = self._entries, []
            if not entries or self._broken:
                return
            try:
                self._write(entries)
            except OSError as error:
                self._broken = True
                logger.warning("The trace that PVTI_OPTIONS asks for cannot be written: %s", error)

    def _write(self, entries: list[Entry]) -> None:
        text = ",\n".join(self._lines(entries)) + _END
        if self._path is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            now = datetime.datetime.now().astimezone()
            self._path, self._status = self._created(f"{now:%Y%m%d_%H%M%S}_{os.getpid()}", "[\n" + text)
            return
        if self._status is not None:
            extend(self._path, self._status, len(_END), (",\n" + text).encode())

    def _created(self, name: str, text: str) -> tuple[Path, os.stat_result]:
        """A new file. If there is one of that name, or a link that somebody prepared, it gets a number."""
        content = text.encode()
        for number in itertools.count():
            path = self._directory / f"{name}{f'_{number}' if number else ''}.json"
            try:
                return path, create(path, content)
            except FileExistsError:
                continue
        raise AssertionError("numbers do not end")

    def _lines(self, entries: list[Entry]) -> Iterator[str]:
        """The events as text, which is put together here: a general encoder takes several times as long."""
        process = os.getpid()
        if self._path is None:
            program = Path(sys.argv[0]).name if sys.argv else ""
            yield _metadata("process_name", process, 0, f"poptorch {program}".strip())
        for thread in dict.fromkeys(entry[1] for entry in entries):
            yield from self._thread(process, thread)
        entries.reverse()  # of spans that begin together, the one that ends last comes first
        entries.sort(key=_start)
        heads: dict[tuple[str, int, str, str], tuple[str, bool, bool]] = {}
        places: dict[tuple[int, int, int, int], str] = {}
        for channel, thread, kind, start, end, part, micro, replica, worker, label in entries:
            key = channel, thread, kind, label
            head, plain, overlaps = heads.get(key) or heads.setdefault(
                key, (_head(channel, thread, kind, label, process), kind in _PLAIN, kind in _OVERLAPPING)
            )
            at = part, micro, replica, worker
            about = "{}" if plain else places.get(at) or places.setdefault(at, _place(*at))
            if overlaps:
                head = f'{head}"id":{next(self._numbers)},'
                yield f'{head}"ph":"b","ts":{start * 1e6:.3f},"args":{about}}}'
                yield f'{head}"ph":"e","ts":{end * 1e6:.3f}}}'
            else:
                yield f'{head}"ph":"X","ts":{start * 1e6:.3f},"dur":{(end - start) * 1e6:.3f},"args":{about}}}'

    def _thread(self, process: int, thread: int) -> Iterator[str]:
        """The name of a thread, once."""
        if thread not in self._named:
            self._named.add(thread)
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            yield _metadata("thread_name", process, thread, names.get(thread, f"thread {thread}"))


def _start(entry: Entry) -> float:
    return entry[3]


def _head(channel: str, thread: int, kind: str, label: str, process: int) -> str:
    """How the events of spans begin that differ only in what follows."""
    name = event_name(channel, kind, label)
    return f'{{"name":{json.dumps(name)},"cat":{json.dumps(channel)},"pid":{process},"tid":{thread},'


def _place(part: int, micro: int, replica: int, worker: int) -> str:
    return f'{{"part":{part},"micro_batch":{micro},"replica":{replica},"worker":{worker}}}'


def _metadata(kind: str, process: int, thread: int, name: str) -> str:
    return json.dumps({"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}})
