"""A report as one trace for ui.perfetto.dev: spans of this host, and the modelled IPUs beside them, on one axis.

The file has Chrome's JSON format. Times are microseconds. The first recorded run and the modelled micro-batch start at
zero: the host's spans are measured, those of IPUs come from the IPU Model; nothing says that they happened together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poptorch.report.files import Profile, Table, rows
from poptorch.report.page.trace import steps_of
from poptorch_files import replace

_HOST = 1
_FIRST_IPU = 100
"""Process numbers of the file: the host's, and that of the first IPU."""

_TRACKS = ("stages", "compute", "exchange", "sync", "global exchange", "host exchange", "streaming memory")
"""Threads of an IPU, in this order. Collectives over replicas are global exchanges."""


def write_timeline(file: Path, profile: Profile) -> None:
    """Write all events of a report."""
    events = [*_names(profile), *_measured(profile), *_modelled(profile), *_stages(profile)]
    replace(file, (json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}) + "\n").encode())


def _names(profile: Profile) -> Iterator[dict[str, Any]]:
    def named(kind: str, process: int, name: str, thread: int = 0) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}

    yield named("process_name", _HOST, "this host (measured)")
    architecture = profile.document["target"]["architecture"]
    for place, ipu in enumerate(profile.document["memory"]["ipus"]):
        yield named("process_name", _FIRST_IPU + place, f"IPU {ipu['ipu']} ({architecture}, modelled)")
        for thread, track in enumerate(_TRACKS):
            yield named("thread_name", _FIRST_IPU + place, track, thread)


def _event(
    name: str, category: str, process: int, thread: int, start: float, length: float, **more: Any
) -> dict[str, Any]:
    given = {key: value for key, value in more.items() if value not in ("", 0, None)}
    return {
        "ph": "X", "name": name, "cat": category, "pid": process, "tid": thread, "ts": round(start, 4),
        "dur": round(max(0.0, length), 4), "args": given,
    }  # fmt: skip


def _measured(profile: Profile) -> Iterator[dict[str, Any]]:
    spans = profile.tables.get("spans")
    if spans is None:
        return
    runs = profile.document["execution"]["runs"]
    origin = runs[0]["start"] if runs else 0.0
    for row in range(rows(spans)):
        run = runs[int(spans["run"][row])]
        start = run["start"] - origin + float(spans["start"][row])
        yield _event(
            str(spans["label"][row]) or str(spans["kind"][row]), str(spans["kind"][row]), _HOST,
            int(spans["worker"][row]) + 1, 1e6 * start, 1e6 * float(spans["end"][row] - spans["start"][row]),
            run=str(run["name"]), part=int(spans["part"][row]), micro_batch=int(spans["micro"][row]),
            replica=int(spans["replica"][row]),
        )  # fmt: skip


def _modelled(profile: Profile) -> Iterator[dict[str, Any]]:
    """Every phase of one micro-batch through all stages, and of one weight update."""
    programs, operations = profile.tables["programs"], profile.tables["operations"]
    if "cycles" not in operations:
        return
    scale = 1e6 / profile.document["target"]["clockFrequencyInHz"]
    steps = steps_of(programs, float(profile.document["target"].get("syncCycles", 0)))
    for row in range(rows(steps)):
        program, kind = int(steps["program"][row]), str(steps["kind"][row])
        owner = int(programs["operation"][program])
        yield _event(
            str(programs["name"][program]), kind, _FIRST_IPU + int(steps["ipu"][row]), _TRACKS.index(kind),
            scale * float(steps["start"][row]), scale * float(steps["cycles"][row]),
            cycles=float(steps["cycles"][row]), bytes=float(programs["exchange_bytes"][program]),
            tiles=int(programs["tiles"][program]), **(_about(operations, owner) if owner >= 0 else {}),
        )  # fmt: skip


def _about(operations: Table, row: int) -> dict[str, Any]:
    names = {"operation": "name", "operator": "operator", "layer": "layer", "line": "source", "flops": "flops"}
    return {key: operations[column][row].item() for key, column in names.items() if column in operations}


def _stages(profile: Profile) -> Iterator[dict[str, Any]]:
    """Which stage works on which micro-batch, after the micro-batch that the phases are of."""
    jobs = profile.tables.get("jobs")
    if jobs is None:
        return
    scale = 1e6 / profile.document["target"]["clockFrequencyInHz"]
    for row in range(rows(jobs)):
        micro = int(jobs["micro"][row])
        name = str(jobs["stage"][row]) + (f", micro-batch {micro}" if micro >= 0 else "")
        yield _event(
            name, "stage", _FIRST_IPU + int(jobs["ipu"][row]), 0, scale * float(jobs["start"][row]),
            scale * float(jobs["cycles"][row]), cycles=float(jobs["cycles"][row]),
        )  # fmt: skip


__all__ = ["write_timeline"]
