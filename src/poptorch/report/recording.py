"""Writes the report of a compiled model, and adds what was measured in its calls."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from poptorch._logging import logger, warn_once
from poptorch.ipu_model import Estimate
from poptorch.options.engine import is_true
from poptorch.profiling.trace import Listeners, Recorder, TraceSpan
from poptorch.report.building import build_profile
from poptorch.report.files import Profile, Rows, Table, save

RUN_COUNT = 2
"""How many runs are kept, if nothing is said: the latest ones."""

Save = Callable[[Path, Profile], None]
"""What writes the files of a report."""

_COUNT_KEY = "autoReport.executionProfileProgramRunCount"


class Traced(Protocol):
    """What runs a model: spans of its calls go to all that listen."""

    trace: Listeners


@dataclass(frozen=True)
class Run:
    """One call, as it was measured on this host."""

    number: int
    start: float
    """Seconds since the model was compiled."""

    seconds: float
    spans: tuple[TraceSpan, ...]
    origin: float
    """The start in the time of the spans."""

    def to_dict(self) -> dict[str, Any]:
        """Its figures, with the seconds of all spans of a kind together."""
        kinds: dict[str, dict[str, float]] = {}
        for span in self.spans:
            kind = kinds.setdefault(span.kind.value, {"count": 0, "seconds": 0.0})
            kind["count"] += 1
            kind["seconds"] += span.end - span.start
        return {
            "name": f"call {self.number}",
            "number": self.number,
            "start": self.start,
            "seconds": self.seconds,
            "kinds": kinds,
        }


class _Pages:
    """The profile of one model and the latest runs, with the folder that they are written to."""

    owners: ClassVar[dict[Path, weakref.ref[_Pages]]] = {}

    def __init__(self, folder: Path, profile: Profile, keep: int, save: Save) -> None:
        self.folder = folder
        self.profile = profile
        self._save = save
        self.runs: deque[Run] = deque(maxlen=keep)
        self.calls = 0
        self.stale = True
        self._take_folder()

    def _take_folder(self) -> None:
        key = self.folder.absolute()
        earlier = self.owners.get(key)
        if earlier is not None and earlier() is not None:
            warn_once(
                ("report", key),
                f"The report in {self.folder} is replaced by that of another model. Use Options.modelName to give each "
                "model a folder of its own.",
            )
        self.owners[key] = weakref.ref(self)

    @property
    def replaced(self) -> bool:
        """Whether another model writes to the folder."""
        owner = self.owners.get(self.folder.absolute())
        return owner is None or owner() is not self

    def write(self) -> None:
        """Write everything, unless it is written already. A report that cannot be written never ends a program."""
        if not self.stale or self.replaced:
            return
        execution = {"programRunCount": self.runs.maxlen, "calls": self.calls, "runs": [r.to_dict() for r in self.runs]}
        tables = {**self.profile.tables, "spans": _spans(self.runs)}
        try:
            self._save(self.folder, Profile({**self.profile.document, "execution": execution}, tables))
        except (OSError, ValueError) as error:  # the latter for folders that cannot be: with a NUL in their name
            where = str(self.folder).encode(errors="backslashreplace").decode()
            warn_once(("report", self.folder), f"The report cannot be written to {where!r}: {error}")
        self.stale = False

    def finish(self) -> None:
        """Write what is missing and give the folder up."""
        self.write()
        if not self.replaced:
            del self.owners[self.folder.absolute()]


class Reporter:
    """The report of one compiled model. It is complete at the latest when the program ends."""

    def __init__(self, estimate: Estimate, name: str, settings: Mapping[str, str], save: Save = save) -> None:
        everything = is_true(settings, "autoReport.all")
        self._measures = is_true(settings, "autoReport.outputExecutionProfile", everything)
        each = "autoReport.streamAtEachRun"
        self._stream = is_true(settings, each) if each in settings else None
        name = name.encode(errors="replace").decode()
        folder = Path(settings.get("autoReport.directory", ".")) / folder_name(name)
        if folder.name != name:
            warn_once(("report folder", name), f"The report of the model {name!r} is in the folder {folder.name!r}.")
        self._pages = _Pages(folder, build_profile(estimate, name, settings), _run_count(settings), save)
        self._began = time.perf_counter()
        self._pages.write()
        self._finish = weakref.finalize(self, self._pages.finish)
        logger.info("The report of the model is in %s", folder)

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._pages.folder

    @contextlib.contextmanager
    def run(self, engine: Traced) -> Iterator[None]:
        """Measure the enclosed call."""
        pages = self._pages
        if not self._measures or pages.replaced:
            yield
            return
        recorder, start = Recorder(), time.perf_counter()
        with engine.trace.also(recorder):
            yield
        end = time.perf_counter()
        pages.runs.append(Run(pages.calls, start - self._began, end - start, recorder.spans, start))
        pages.calls += 1
        pages.stale = True
        if self._due():
            pages.write()

    def _due(self) -> bool:
        """After each of the first runs, then more and more rarely: writing takes time. The rest follows at the end."""
        calls, keep = self._pages.calls, self._pages.runs.maxlen or 0
        if self._stream is not None:
            return self._stream
        return calls <= min(keep, RUN_COUNT) or calls & (calls - 1) == 0

    def finish(self) -> None:
        """Write what is missing; nothing is written afterwards."""
        self._finish()


_LONGEST_NAME = 200


def folder_name(name: str) -> str:
    """The name of a folder for a model of any name: one folder in the one for reports, and no other.

    >>> folder_name("bert-large"), folder_name("google/bert"), folder_name("..")
    ('bert-large', 'google_bert', '_')
    """
    kept = "".join(letter if letter.isprintable() and letter not in "/\\" else "_" for letter in name)
    while len(kept.encode()) > _LONGEST_NAME:
        kept = kept[:-1]
    return "_" if kept.strip(". ") == "" else kept


def _run_count(settings: Mapping[str, str]) -> int:
    text = settings.get(_COUNT_KEY, str(RUN_COUNT))
    if not text.strip().isdigit():
        warn_once(("engine option", _COUNT_KEY, text), f"The engine option {_COUNT_KEY!r} is {text!r}; use a number.")
        return RUN_COUNT
    return int(text)


def _spans(runs: deque[Run]) -> Table:
    found = Rows(
        run=int, kind=str, part=int, micro=int, replica=int, worker=int, start=float, end=float, label=str
    )  # fmt: skip
    for index, run in enumerate(runs):
        for span in run.spans:
            found.add(
                run=index, kind=span.kind.value, part=span.part, micro=span.micro, replica=span.replica,
                worker=span.worker, start=span.start - run.origin, end=span.end - run.origin, label=span.label,
            )  # fmt: skip
    return found.table()


__all__ = ["RUN_COUNT", "Reporter", "Run", "Traced"]
