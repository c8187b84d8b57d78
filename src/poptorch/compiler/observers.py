"""Who looks on while a program is lowered: the progress bar, the log, and the dump of the program after each pass."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from poptorch import environment
from poptorch._logging import backend, warn_once
from poptorch.compiler.exports import InputExports
from poptorch.compiler.passes.summary import UNCHANGED
from poptorch.profiling.trace import NO_TRACE, SpanKind, Trace, TraceSpan
from poptorch.program.program import Program

if TYPE_CHECKING:
    from poptorch.compiler.pipeline import Observer, Pass


class ProgressNotes:
    """Tells a progress bar the name of each pass."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress

    def before(self, step: Pass, program: Program) -> None:
        """Show the name."""
        self._progress(step.name)

    def after(self, step: Pass, program: Program, summary: str, seconds: float) -> None:
        """The next name says enough."""


class DebugLog:
    """Writes a line of the debug log for each pass."""

    def before(self, step: Pass, program: Program) -> None:
        """There is nothing to say yet."""

    def after(self, step: Pass, program: Program, summary: str, seconds: float) -> None:
        """What the pass did, and how long it took."""
        backend.debug("Pass %s: %s (%.1f ms)", step.name, summary, seconds * 1e3)


class Dump:
    """Writes the program before the first pass and after each pass to numbered files of a folder.

    Where the program is still the same, the file says so in one word.
    """

    def __init__(self, folder: Path, start: str = "captured") -> None:
        self._folder = folder
        self._start = start
        self._latest: str | None = None
        self._written = 0

    def before(self, step: Pass, program: Program) -> None:
        """The first pass finds what was captured."""
        if self._latest is None:
            self._write(self._start, program)

    def after(self, step: Pass, program: Program, summary: str, seconds: float) -> None:
        """The program as the pass left it."""
        self._write(step.name.replace(" ", "-"), program)

    def write(self, name: str, listing: str) -> None:
        """A file for something else."""
        self._put(name.replace(" ", "-"), listing)

    def _write(self, name: str, program: Program) -> None:
        self._put(name, str(program))

    def _put(self, name: str, listing: str) -> None:
        text = UNCHANGED if listing == self._latest else listing
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{self._written:02}-{name}.txt").write_text(text + "\n", encoding="utf-8")
        except OSError as error:  # a full disk must not cost the program its training
            _cannot_dump(self._folder, error)
        self._latest = listing
        self._written += 1

    def of_host(self) -> Dump:
        """The same for the host's own copy of the program."""
        return Dump(self._folder / "host", start="whole")


class PassSpans:
    """Puts a span for each pass into a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def before(self, step: Pass, program: Program) -> None:
        """The span is made when its end is known."""

    def after(self, step: Pass, program: Program, summary: str, seconds: float) -> None:
        """From the start of the pass to now, without what other observers do."""
        now = time.perf_counter()
        self._trace.add(TraceSpan(SpanKind.PASS, now - seconds, now, label=step.name))


def requested_dump(training: bool) -> Dump | None:
    """Where POPTORCH_DUMP wants to see the next model: in a folder of its own."""
    root = environment.DUMP.read()
    if root is None:
        return None
    kind = "training" if training else "inference"
    for number in itertools.count(1):
        folder = Path(root) / f"{kind}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except (OSError, ValueError) as error:
            _cannot_dump(folder, error)
            return None
        return Dump(folder)
    raise AssertionError("there is always a next number")


def _cannot_dump(folder: Path, error: Exception) -> None:
    where = environment.quoted(str(folder))
    warn_once(("dump", str(folder)), f"What {environment.DUMP.name} asks for cannot be written to {where}: {error}")


def usual_observers(progress: Callable[[str], None], dump: Dump | None, trace: Trace = NO_TRACE) -> list[Observer]:
    """The trace, progress bar, log, exports, and the dump if there is one."""
    spans = [PassSpans(trace)] if trace.active else []
    return [*spans, ProgressNotes(progress), DebugLog(), InputExports(), *([] if dump is None else [dump])]


__all__ = ["DebugLog", "Dump", "PassSpans", "ProgressNotes", "requested_dump", "usual_observers"]
