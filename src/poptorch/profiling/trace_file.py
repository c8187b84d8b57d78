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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any

from poptorch._logging import logger

_FLUSH_AT = 20_000
"""How many events wait in memory, at most."""

_END = "\n]\n"


@dataclass(frozen=True)
class Event:
    """One span of time."""

    name: str
    channel: str
    thread: int
    start_ns: int
    end_ns: int
    details: Mapping[str, int] = field(default_factory=dict)
    overlaps: bool = False
    """Whether it may begin or end in the middle of others of its thread: then it is drawn on a line of its own."""


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
        self._events: list[Event] = []
        self._path: Path | None = None
        self._named: set[int] = set()
        self._numbers = itertools.count(1)
        self._broken = False

    @property
    def path(self) -> Path | None:
        """The file of this process; ``None`` as long as nothing was written."""
        return self._path

    def add(self, event: Event) -> None:
        """Take an event of any thread."""
        events = self._events
        events.append(event)
        if len(events) >= _FLUSH_AT:
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        with self._lock:
            events, self._events = self._events, []
            if not events or self._broken:
                return
            try:
                self._write(events)
            except OSError as error:
                self._broken = True
                logger.warning("The trace that PVTI_OPTIONS asks for cannot be written: %s", error)

    def _write(self, events: list[Event]) -> None:
        lines = [json.dumps(line, separators=(",", ":")) for line in self._lines(events)]
        if self._path is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            now = datetime.datetime.now().astimezone()
            self._path = self._directory / f"{now:%Y%m%d_%H%M%S}_{os.getpid()}.json"
            self._path.write_text("[\n" + ",\n".join(lines) + _END, encoding="utf-8")
            return
        with self._path.open("r+", encoding="utf-8") as file:
            file.seek(self._path.stat().st_size - len(_END))
            file.write(",\n" + ",\n".join(lines) + _END)

    def _lines(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        process = os.getpid()
        if self._path is None:
            program = Path(sys.argv[0]).name if sys.argv else ""
            yield _metadata("process_name", process, 0, f"poptorch {program}".strip())
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for event in sorted(events, key=lambda event: (event.start_ns, -event.end_ns)):
            if event.thread not in self._named:
                self._named.add(event.thread)
                yield _metadata("thread_name", process, event.thread, names.get(event.thread, f"thread {event.thread}"))
            line = {"name": event.name, "cat": event.channel, "pid": process, "tid": event.thread}
            if event.overlaps:
                line["id"] = next(self._numbers)
                yield {**line, "ph": "b", "ts": event.start_ns / 1e3, "args": dict(event.details)}
                yield {**line, "ph": "e", "ts": event.end_ns / 1e3}
            else:
                times = {"ts": event.start_ns / 1e3, "dur": (event.end_ns - event.start_ns) / 1e3}
                yield {**line, "ph": "X", **times, "args": dict(event.details)}


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
