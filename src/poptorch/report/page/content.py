"""What a page shows of one report: pure functions from a profile to figures and tables.

Calls of a model add to its report again and again. What does not change meanwhile is apart from what does, and is made
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poptorch.report.categories import COMING, GAPS
from poptorch.report.files import Profile, Table, rows
from poptorch.report.findings import findings_in
from poptorch.report.page.packing import pack
from poptorch.report.page.trace import flames_of, steps_of, tile_use
from poptorch.report.summary import Section, repeats, summary

_PROGRAM_COLUMNS = (
    "type", "name", "parent", "ipu", "operation", "repeat", "cycles", "inside", "tile_cycles", "total_cycles",
    "tiles", "exchange_bytes", "code_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Content:
    """The data of one report: figures (numbers, texts, lists, dictionaries) and tables of columns."""

    figures: dict[str, Any]
    tables: dict[str, Table]

    def packed(self) -> bytes:
        """In the form that the page reads."""
        return pack(self.figures, self.tables)


def model_of(profile: Profile, name: str = "") -> Content:
    """What is known after the compilation; ``name`` is what the page calls the report, by default the model's."""
    tables: dict[str, Table] = {
        "tiles": {category: on_tiles.astype(np.float32) for category, on_tiles in profile.tables["tiles"].items()},
        "liveness": _chosen(profile.tables["liveness"], ("ipu", "name", "layer", "bytes", "operation")),
        "operations": _operations(profile),
        "programs": _chosen(profile.tables["programs"], _PROGRAM_COLUMNS),
        **_trace(profile),
        **{table: profile.tables[table] for table in ("variables", "jobs") if table in profile.tables},
    }
    document = {key: value for key, value in profile.document.items() if key != "execution"}
    figures = {
        "name": name or profile.document["model"],
        "document": document,
        "gaps": GAPS,
        "notAlwaysLive": COMING,
    }
    return Content(figures, tables)


def calls_of(profile: Profile) -> Content:
    """What calls add to it: their times, and the texts that speak of them."""
    figures = {
        "execution": profile.document["execution"],
        "sections": [_section(section) for section in _sections(profile)],
        "insights": [finding.to_dict() for finding in findings_in(profile)],
    }
    return Content(figures, {"spans": profile.tables["spans"]} if "spans" in profile.tables else {})


def _sections(profile: Profile) -> list[Section]:
    """The summary, without what has a tab of its own."""
    return [section for section in summary(profile) if section.title != "Insights"]


def _section(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "lines": [list(line) for line in section.lines],
        "columns": list(section.columns),
        "rows": [list(row) for row in section.rows],
        "parts": [_section(part) for part in section.parts],
    }


def _chosen(table: Table, columns: Sequence[str]) -> Table:
    return {column: table[column] for column in columns if column in table}


def _operations(profile: Profile) -> Table:
    """Operations with how often a call runs them, and how well they use the tiles."""
    table = profile.tables["operations"]
    programs, count = profile.tables["programs"], rows(table)
    share, used = tile_use(programs, count, profile.document["target"]["tilesPerIpu"])
    return {
        **{column: values for column, values in table.items() if column != "last_program"},
        "runs": repeats(programs)[table["first_program"]] if count else np.zeros(0, dtype=np.int64),
        "tiles": used,
        "tile_use": share.astype(np.float32),
    }


def _trace(profile: Profile) -> dict[str, Table]:
    if "cycles" not in profile.tables["operations"]:
        return {}
    programs = profile.tables["programs"]
    steps = steps_of(programs, float(profile.document["target"].get("syncCycles", 0)))
    return {"steps": steps, "flames": flames_of(programs, profile.tables["operations"], steps)}


__all__ = ["Content", "calls_of", "model_of"]
