"""What instances print: gathered from pipes, tagged line by line, and passed on to PopRun's own streams or to files."""

from __future__ import annotations

import os
import re
import selectors
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

STREAMS = ("stdout", "stderr")
_ENDS = re.compile(rb"\r\n|\n|\r")
_LONGEST = 1 << 16
"""A line that is longer is passed on in pieces."""


@dataclass
class _Source:
    """One stream of one instance."""

    reader: int
    writer: int
    tag: bytes
    sink: Callable[[bytes], None]
    rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Pass on complete lines, and keep the rest."""
        *lines, self.rest = split_lines(self.rest + data)
        for line in lines:
            self.sink(self.tag + line)

    def finish(self) -> None:
        """Pass on what has no end of line."""
        if self.rest:
            self.sink(self.tag + self.rest.rstrip(b"\r") + b"\n")
            self.rest = b""


def split_lines(data: bytes) -> Iterator[bytes]:
    """Lines with their ends, and last what has no end yet. A progress bar ends its lines with a carriage return.

    >>> list(split_lines(b"a\\nb\\rc"))
    [b'a\\n', b'b\\r', b'c']
    """
    start = 0
    for end in _ENDS.finditer(data):
        if end.group() == b"\r" and end.end() == len(data):
            break  # the line feed that belongs to it may follow
        yield data[start : end.end()]
        start = end.end()
    while len(data) - start > _LONGEST:
        yield data[start : start + _LONGEST] + b"\n"
        start += _LONGEST
    yield data[start:]


@dataclass
class Outputs:
    """The pipes of all instances of this host, and a thread that reads them."""

    instances: int
    only: int | None = None
    """The one instance to show, or ``None`` for all."""

    folder: Path | None = None
    """Where to write the output of each instance, besides showing it."""

    _sources: list[_Source] = field(default_factory=list)
    _files: list[BinaryIO] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _stopped: bool = False

    def __post_init__(self) -> None:
        for instance in range(self.instances):
            for name in STREAMS:
                reader, writer = os.pipe()
                os.set_blocking(reader, False)
                tag = f"[1,{instance}]<{name}>:".encode()
                self._sources.append(_Source(reader, writer, tag, self._sink(instance, name, len(tag))))
        self._thread = threading.Thread(target=self._run, name="poprun output", daemon=True)
        self._thread.start()

    def path(self, instance: int, name: str) -> str:
        """A file name under which the instance can open its stream."""
        source = self._sources[instance * len(STREAMS) + STREAMS.index(name)]
        return f"/dev/fd/{source.writer}"

    def close(self) -> None:
        """Pass on what is left, after the instances have ended."""
        for source in self._sources:
            os.close(source.writer)
        self._stopped = True
        if self._thread is not None:
            self._thread.join()
        for file in self._files:
            file.close()

    def _sink(self, instance: int, name: str, tag: int) -> Callable[[bytes], None]:
        shown = self.only is None or self.only == instance
        file: BinaryIO | None = None
        if self.folder is not None:  # as Open MPI arranges them
            path = self.folder / "1" / f"rank.{instance}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "wb")  # noqa: SIM115 - closed with all others
            self._files.append(file)

        def write(line: bytes) -> None:
            if file is not None:
                file.write(line[tag:])
                file.flush()
            if shown:
                show(name, line)

        return write

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for source in self._sources:
                selector.register(source.reader, selectors.EVENT_READ, source)
            while selector.get_map():
                # Once all instances have ended, a process that they left may still have a pipe: it is not waited for.
                ready = selector.select(0.1)
                if not ready and self._stopped:
                    break
                for key, _ in ready:
                    source = key.data
                    data = _read(source.reader)
                    source.feed(data)
                    if not data:
                        selector.unregister(source.reader)
        for source in self._sources:
            source.finish()
            os.close(source.reader)


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, _LONGEST)
    except BlockingIOError:
        return b""


def show(name: str, line: bytes) -> None:
    """Write a line to PopRun's own stream."""
    stream = sys.stdout if name == "stdout" else sys.stderr
    try:
        stream.buffer.write(line)
        stream.buffer.flush()
    except BrokenPipeError:  # the reader of our output has gone; the job goes on
        return
