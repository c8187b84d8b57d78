"""Two reports side by side: totals, categories of memory, layers and operations, with what was added and removed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from poptorch.report.files import Profile, Rows, Table
from poptorch.report.page.content import Content

ADDED, REMOVED, CHANGED, SAME = "added", "removed", "changed", "same"

_MEASURES = ("cycles", "flops", "bytes")


def compare(one: Profile, other: Profile) -> Content:
    """The differences from ``one`` to ``other``."""
    figures = {"totals": _totals(one.document, other.document)}
    tables = {"categories": _categories(one, other), "operations": _operations(one, other)}
    tables["layers"] = _layers(tables["operations"])
    return Content(figures, tables)


def _totals(one: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    """Name, both values, and the unit that they are shown in."""

    def figures(document: dict[str, Any]) -> list[tuple[str, str, Any]]:
        estimate, ipus, graph = document["estimate"], document["memory"]["ipus"], document["graph"]
        runs = document["execution"]["runs"]
        measured = sum(run["seconds"] for run in runs) / len(runs) if runs else None
        return [
            ("Cycles of a call", "cycles", estimate["cycles"]),
            ("Time of a call (modelled)", "seconds", estimate["seconds"]),
            ("Time of a call (measured on the host)", "seconds", measured),
            ("Samples per second", "number", estimate["throughput"]),
            ("Latency of a micro-batch", "seconds", estimate["latency"]),
            ("Waiting for other IPUs", "share", estimate["bubble"]),
            *((f"Cycles: {key}", "cycles", estimate["cyclesByResource"].get(key, 0.0)) for key in _RESOURCES),
            ("Memory including gaps", "bytes", sum(ipu["includingGaps"] for ipu in ipus)),
            ("Memory, always live", "bytes", sum(ipu["alwaysLive"] for ipu in ipus)),
            ("Memory, not always live", "bytes", sum(ipu["notAlwaysLive"] for ipu in ipus)),
            ("Fullest tile", "bytes", max(ipu["maxTileBytes"] for ipu in ipus)),
            ("Tiles out of memory", "number", sum(ipu["tilesOverLimit"] for ipu in ipus)),
            ("IPUs", "number", document["target"]["numIPUs"]),
            ("Operations", "number", graph["numOperations"]),
            ("Compute sets", "number", graph["numComputeSets"]),
            ("Vertices", "number", graph["numVertices"]),
        ]

    return [
        {"name": name, "unit": unit, "one": first, "other": second}
        for (name, unit, first), (_, _, second) in zip(figures(one), figures(other), strict=True)
    ]


_RESOURCES = ("compute", "exchange", "sync", "host", "link", "DDR")


def _categories(one: Profile, other: Profile) -> Table:
    """Bytes of each category, all IPUs of a replica together."""
    sums: list[Counter[str]] = [Counter(), Counter()]
    for profile, found in zip((one, other), sums, strict=True):
        for ipu in profile.document["memory"]["ipus"]:
            found.update(ipu["byCategory"])
    made = Rows(category=str, one=float, other=float)
    for category in dict.fromkeys([*sums[0], *sums[1]]):
        made.add(category=category, one=sums[0][category], other=sums[1][category])
    return made.table()


def _operations(one: Profile, other: Profile) -> Table:
    """A row for each operation of either report; those that are alike are one row, others are added or removed."""
    first, second = one.tables["operations"], other.tables["operations"]
    measures = [m for m in _MEASURES if m in first and m in second]
    columns = {f"{m}_{side}": float for m in measures for side in ("one", "other")}
    made = Rows(state=str, name=str, operator=str, layer=str, sweep=str, **columns)
    for rows in _pairs(first, second):
        values = {
            f"{m}_{side}": 0.0 if row is None else float(table[m][row])
            for m in measures
            for side, table, row in zip(("one", "other"), (first, second), rows, strict=True)
        }
        table, row = (first, rows[0]) if rows[0] is not None else (second, rows[1])
        what = {column: str(table[column][row]) for column in ("name", *_IDENTITY)}
        made.add(state=_state(rows, values, measures), **what, **values)
    return made.table()


_IDENTITY = ("operator", "layer", "sweep")
"""What an operation is, whatever its number."""

_WORK = ("flops", "bytes")


def _pairs(first: Table, second: Table) -> list[tuple[int | None, int | None]]:
    """Rows that belong together: first those with the same work, then the rest in order; at the end what is left."""
    left: list[dict[int, None]] = [dict.fromkeys(range(len(table["name"]))) for table in (first, second)]
    found: list[tuple[int | None, int | None]] = []
    work = [column for column in _WORK if column in first and column in second]
    for columns in ([*_IDENTITY, *work], list(_IDENTITY)):
        waiting: dict[tuple[object, ...], list[int]] = {}
        for row in left[1]:
            waiting.setdefault(_key(second, columns, row), []).append(row)
        for rows in waiting.values():
            rows.reverse()
        for row in list(left[0]):
            rows = waiting.get(_key(first, columns, row), [])
            if rows:
                found.append((row, rows[-1]))
                del left[0][row], left[1][rows.pop()]
    return [
        *sorted(found, key=lambda pair: pair[0] or 0),
        *((row, None) for row in left[0]),
        *((None, row) for row in left[1]),
    ]


def _key(table: Table, columns: list[str], row: int) -> tuple[object, ...]:
    return tuple(table[column][row].item() for column in columns)


def _state(rows: tuple[int | None, int | None], values: dict[str, float], measures: list[str]) -> str:
    if rows[0] is None:
        return ADDED
    if rows[1] is None:
        return REMOVED
    return SAME if all(values[f"{m}_one"] == values[f"{m}_other"] for m in measures) else CHANGED


def _layers(operations: Table) -> Table:
    """The same, summed up by module."""
    layers, index = np.unique(operations["layer"], return_inverse=True)
    sums = {
        column: np.bincount(index, values, len(layers))
        for column, values in operations.items()
        if values.dtype.kind == "f"
    }
    return {"layer": layers, **sums}


__all__ = ["ADDED", "CHANGED", "REMOVED", "SAME", "compare"]
