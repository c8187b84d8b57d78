"""The differences of two reports as text and JSON, and whether the second one is worse: for terminals and for CI."""

from __future__ import annotations

from typing import Any

import numpy as np

from poptorch.figures import byte_size, time_span
from poptorch.report.files import Profile
from poptorch.report.findings import findings_in
from poptorch.report.page.comparing import ADDED, CHANGED, REMOVED, compare
from poptorch.report.summary import Section

_SHOWN = 10
"""Modules that are listed."""

_FEWER_IS_WORSE = {"Samples per second"}
_MORE_IS_WORSE = {"Latency of a micro-batch", "Fullest tile", "Tiles out of memory"}


def differences(one: Profile, other: Profile, tolerance: float) -> dict[str, Any]:
    """Everything that differs; ``worse`` lists what is worse by more than ``tolerance``, a share."""
    content = compare(one, other)
    operations, layers, categories = (content.tables[name] for name in ("operations", "layers", "categories"))
    states = operations["state"]
    titles = [{it.title for it in findings_in(profile) if it.kind != "measured"} for profile in (one, other)]
    return {
        "totals": content.figures["totals"],
        "categories": _rows(categories, "category", "one", "other"),
        "operations": {state: int((states == state).sum()) for state in (ADDED, REMOVED, CHANGED)},
        "layers": _rows(layers, "layer", "cycles_one", "cycles_other") if "cycles_one" in layers else [],
        "findings": {"new": sorted(titles[1] - titles[0]), "gone": sorted(titles[0] - titles[1])},
        "worse": _worse(content.figures["totals"], tolerance),
    }


def _rows(table: dict[str, Any], name: str, first: str, second: str) -> list[dict[str, Any]]:
    """What differs, the largest difference first."""
    order = np.argsort(-np.abs(table[second] - table[first]), kind="stable")
    return [
        {"name": str(table[name][row]), "one": float(table[first][row]), "other": float(table[second][row])}
        for row in order
        if table[first][row] != table[second][row]
    ]


def _worse(totals: list[dict[str, Any]], tolerance: float) -> list[str]:
    found = []
    for it in totals:
        one, other = it["one"], it["other"]
        if one is None or other is None or it["name"] not in _FEWER_IS_WORSE | _MORE_IS_WORSE:
            continue
        lost = one - other if it["name"] in _FEWER_IS_WORSE else other - one
        if lost > tolerance * abs(one):
            found.append(f"{it['name']}: {_shown(one, it['unit'])} before, {_shown(other, it['unit'])} now")
    return found


def as_section(found: dict[str, Any], names: tuple[str, str]) -> Section:
    """The same for people."""
    counts = ", ".join(f"{count} {state}" for state, count in found["operations"].items() if count)
    columns = ("", *names, "Change")
    parts = [
        Section("Totals", columns=columns, rows=[
            (it["name"], _shown(it["one"], it["unit"]), _shown(it["other"], it["unit"]), _change(it))
            for it in found["totals"] if it["one"] != it["other"]
        ]),
        Section("Memory by category", columns=columns, rows=[
            (it["name"], byte_size(it["one"]), byte_size(it["other"]), _change(it)) for it in found["categories"]
        ]),
        Section("Cycles by module", columns=columns, rows=[
            (it["name"] or "outside of modules", f"{it['one']:,.0f}", f"{it['other']:,.0f}", _change(it))
            for it in found["layers"][:_SHOWN]
        ]),
    ]  # fmt: skip
    lines = [("Operations", counts or "the same")]
    lines += [("New finding", title) for title in found["findings"]["new"]]
    lines += [("Gone", title) for title in found["findings"]["gone"]]
    lines += [("Worse", text) for text in found["worse"]]
    return Section(f"From {names[0]} to {names[1]}", lines, parts=[part for part in parts if part.rows])


def _change(it: dict[str, Any]) -> str:
    if it["one"] is None or it["other"] is None:
        return ""
    return f"{it['other'] / it['one'] - 1:+.1%}" if it["one"] else "new"


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return byte_size(value)
    if unit == "seconds":
        return time_span(value)
    return f"{value:.1%}" if unit == "share" else f"{value:,.0f}"


__all__ = ["as_section", "differences"]
