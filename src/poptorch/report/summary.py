"""The summary of a report: sections in the order of Poplar's text profile, as plain text or with ``rich``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poptorch.figures import byte_size, columns, time_span
from poptorch.report.categories import DATA_TYPES
from poptorch.report.files import Profile, Table
from poptorch.report.findings import findings_in

UNKNOWN = "not modelled"

_RANGES = 8
"""Rows of the histogram of tiles."""


@dataclass
class Section:
    """A title, lines of names and values, and what stands under them."""

    title: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    parts: list[Section] = field(default_factory=list)


def summary(profile: Profile) -> list[Section]:
    """Target, graph, memory usage and execution; then what was measured, and what to do next."""
    made = [_target(profile), _graph(profile), _memory(profile), _execution(profile), _measured(profile)]
    return [*made, _insights(profile)]


def _target(profile: Profile) -> Section:
    target = profile.document["target"]
    return Section("Target", [
        ("Architecture", target["architecture"]),
        ("Number of IPUs", _number(target["numIPUs"])),
        ("IPUs per replica", _number(target["ipusPerReplica"])),
        ("Replicas", _number(target["numReplicas"])),
        ("Tiles per IPU", _number(target["tilesPerIpu"])),
        ("Tiles of a replica", _number(target["numTiles"])),
        ("Memory per tile", byte_size(target["bytesPerTile"])),
        ("Memory of a replica", byte_size(target["totalMemory"])),
        ("Clock", f"{target['clockFrequencyInHz'] / 1e6:,.0f} MHz"),
    ])  # fmt: skip


def _graph(profile: Profile) -> Section:
    graph = profile.document["graph"]
    return Section("Graph", [
        ("Number of vertices", _number(graph["numVertices"])),
        ("Number of edges", UNKNOWN),
        ("Number of variables", _number(graph["numVars"])),
        ("Number of compute sets", _number(graph["numComputeSets"])),
        ("Number of exchanges", _number(graph["numExchanges"])),
        ("Number of operations", _number(graph["numOperations"])),
    ])  # fmt: skip


# -- memory --------------------------------------------------------------------------------------------------------


def _memory(profile: Profile) -> Section:
    ipus = profile.document["memory"]["ipus"]
    totals = [
        ("Including gaps", byte_size(sum(ipu["includingGaps"] for ipu in ipus))),
        ("Excluding gaps", byte_size(sum(ipu["excludingGaps"] for ipu in ipus))),
        ("Always live", byte_size(sum(ipu["alwaysLive"] for ipu in ipus))),
        ("Not always live", byte_size(sum(ipu["notAlwaysLive"] for ipu in ipus))),
    ]
    return Section("Memory Usage", parts=[
        Section("Total (one replica)", totals),
        Section("By Memory Region", [(name, UNKNOWN) for name in ("Non-interleaved", "Interleaved", "Overflowed")]),
        _by_data_type(ipus),
        _by_ipu(ipus),
        *_vertex_data(profile),
        _by_tile(profile),
    ])  # fmt: skip


def _by_ipu(ipus: Sequence[dict[str, Any]]) -> Section:
    columns = ("IPU", "Including gaps", "Always live", "Fullest tile", "Tiles out of memory")
    return Section("By IPU", columns=columns, rows=[
        (str(ipu["ipu"]), byte_size(ipu["includingGaps"]), byte_size(ipu["alwaysLive"]),
         f"{ipu['maxTile']}: {byte_size(ipu['maxTileBytes'])}", _number(ipu["tilesOverLimit"]))
        for ipu in ipus
    ])  # fmt: skip


def _by_data_type(ipus: Sequence[dict[str, Any]]) -> Section:
    sums: dict[str, int] = {}
    for ipu in ipus:
        for category, size in ipu["byCategory"].items():
            sums[category] = sums.get(category, 0) + size
    section = Section("By Data Type")
    for kind in DATA_TYPES:
        total = byte_size(sum(sums.get(column, 0) for column in kind.columns)) if kind.columns else UNKNOWN
        section.lines.append((kind.title, total))
        if len(kind.columns) > 1:
            section.lines += [(f"  {column}", byte_size(sums[column])) for column in kind.columns if column in sums]
    return section


def _vertex_data(profile: Profile) -> Iterator[Section]:
    vertices = profile.tables["vertices"]
    size = vertices["total"] * vertices["state_bytes"]
    others = ("Edge pointers", "Copy pointers", "Padding", "Descriptors")
    yield Section(
        "Vertex Data by category (before equal operations share it)",
        [("Internal vertex state and pointers", byte_size(int(size.sum()))), *((name, UNKNOWN) for name in others)],
    )
    yield Section("Vertex Data by type", columns=("Type", "Vertices", "Bytes"), rows=[
        (name, _number(count), byte_size(total)) for name, count, total in _by_type(vertices, size)
    ])  # fmt: skip


def _by_type(vertices: Table, weights: np.ndarray[Any, Any]) -> list[tuple[str, int, int]]:
    """Types of vertices with their number and the sum of something about them, the largest sum first."""
    names, index = np.unique(vertices["type"], return_inverse=True)
    counts = np.bincount(index, vertices["total"], len(names))
    sums = np.bincount(index, weights, len(names))
    return [(str(names[i]), round(counts[i]), round(sums[i])) for i in np.argsort(-sums, kind="stable")]


def _by_tile(profile: Profile) -> Section:
    target, ipus = profile.document["target"], profile.document["memory"]["ipus"]
    used = np.sum(list(profile.tables["tiles"].values()), axis=0)
    fullest = int(used.argmax())
    place, tile = divmod(fullest, target["tilesPerIpu"])
    lines = [
        ("Maximum", f"{byte_size(used[fullest])} on tile {tile} of IPU {ipus[place]['ipu']}"),
        ("Limit", byte_size(target["bytesPerTile"])),
        ("Tiles out of memory", _number(int((used > target["bytesPerTile"]).sum()))),
    ]
    counts, edges = np.histogram(used, _RANGES)
    rows = [
        (f"{byte_size(low)} to {byte_size(high)}", _number(int(count)))
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
        if count
    ]
    return Section("By Tile", lines, ("Range", "Tiles"), rows)


# -- execution -----------------------------------------------------------------------------------------------------


def repeats(programs: Table) -> np.ndarray[Any, Any]:
    """How often a call runs each program: the product of the loops around it. Parents come before their children."""
    times = programs["repeat"].copy()
    for row, parent in enumerate(programs["parent"]):
        if parent >= 0:
            times[row] *= times[parent]
    return times


def _execution(profile: Profile) -> Section:
    estimate, target = profile.document["estimate"], profile.document["target"]
    spent = estimate["cyclesByResource"]
    programs = profile.tables["programs"]
    compute = float((programs["total_cycles"] * repeats(programs)).sum())
    lines = [
        ("Total cycles of a call", f"{_number(estimate['cycles'])} ({time_span(estimate['seconds'])})"),
        ("Tile average compute cycles (including idle threads)", _number(compute / target["numTiles"])),
        ("Tile average compute cycles (excluding idle threads)", UNKNOWN),
        ("Compute cycles", _number(spent.get("compute", 0.0))),
        ("IPU exchange cycles", _number(spent.get("exchange", 0.0))),
        ("Global exchange cycles", _number(spent.get("link", 0.0))),
        ("Host exchange cycles", _number(spent.get("host", 0.0))),
        ("Streaming memory cycles", _number(spent.get("DDR", 0.0))),
        ("Sync cycles", _number(spent.get("sync", 0.0))),
        ("Samples per second", f"{estimate['throughput']:,.0f}"),
        ("Waiting for other IPUs", f"{estimate['bubble']:.0%}"),
        ("Bound by", estimate["boundBy"]),
    ]
    stages = Section("Passes of one micro-batch", columns=("Pass", "IPU", "Cycles", "FLOPs"), rows=[
        (stage["label"], str(stage["ipu"]), _number(stage["cycles"]), _number(stage["flops"]))
        for stage in estimate["stages"]
    ])  # fmt: skip
    return Section("Execution", lines, parts=[stages, _cycles_by_type(profile), _slowest(profile)])


def _cycles_by_type(profile: Profile) -> Section:
    """A program with several types of vertices shares its cycles among them by their number."""
    programs, vertices = profile.tables["programs"], profile.tables["vertices"]
    cycles = programs["total_cycles"] * repeats(programs)
    number = np.bincount(vertices["program"], vertices["total"], len(cycles))
    owner = vertices["program"]
    share = cycles[owner] * vertices["total"] / np.maximum(number[owner], 1)
    return Section("Cycles by vertex type (all tiles, one call)", columns=("Type", "Vertices", "Cycles"), rows=[
        (name, _number(count), _number(total)) for name, count, total in _by_type(vertices, share)
    ])  # fmt: skip


def _slowest(profile: Profile, count: int = 10) -> Section:
    table = profile.tables["operations"]
    columns = ("Operation", "Layer", "IPU", "Cycles", "Source")
    if "cycles" not in table:
        return Section("Slowest operations", [("Cycles", "left out (profiler.includeCycleEstimates)")])
    ipus = [str(ipu["ipu"]) for ipu in profile.document["memory"]["ipus"]]
    return Section("Slowest operations", columns=columns, rows=[
        (
            str(table["name"][row]), str(table["layer"][row]), ipus[table["ipu"][row]],
            _number(table["cycles"][row]), str(table["source"][row]) if "source" in table else "",
        )
        for row in np.argsort(-table["cycles"], kind="stable")[:count]
    ])  # fmt: skip


def _measured(profile: Profile) -> Section:
    runs = profile.document["execution"]["runs"]
    if not runs:
        return Section("Measured on this host", [("Runs", "none yet")])
    rows = [
        (
            str(run["name"]),
            time_span(run["seconds"]),
            ", ".join(f"{kind} {found['count']}" for kind, found in run["kinds"].items()),
        )
        for run in runs
    ]
    return Section("Measured on this host", [("Runs kept", _number(len(runs)))], ("Run", "Time", "Spans"), rows)


def _insights(profile: Profile) -> Section:
    """What the page says, too; and what is large."""
    ipus = profile.document["memory"]["ipus"]
    lines: list[tuple[str, str]] = []
    for finding in findings_in(profile):
        name = "Assumed" if finding.kind == "assumption" else finding.level.capitalize()
        text = finding.text if finding.kind == "assumption" else f"{finding.title}. {finding.text}"
        lines.append((name, text))
        if finding.action:
            lines.append(("  what to do", finding.action))
        if finding.effect:
            lines.append(("  when tried", finding.effect))
    large = [tensor for ipu in ipus for tensor in ipu["largest"][:3]]
    lines += [("Largest", f"{tensor['name']} ({tensor['what']}): {byte_size(tensor['bytes'])}") for tensor in large]
    return Section("Insights", lines)


# -- as text -------------------------------------------------------------------------------------------------------


def as_text(sections: Sequence[Section]) -> str:
    """Plain text, indented by level."""
    return "\n".join(line for section in sections for line in [*_lines(section, 0), ""]).rstrip() + "\n"


def _lines(section: Section, level: int) -> Iterator[str]:
    yield "  " * level + section.title + ":"
    margin = "  " * (level + 1)
    width = max((len(name) for name, _ in section.lines), default=0) + 1
    for name, value in section.lines:
        yield f"{margin}{name + ':':<{width}}  {value}"
    if section.rows:
        yield from (f"{margin}{line}" for line in columns([section.columns, *section.rows]))
    for part in section.parts:
        yield from _lines(part, level + 1)


def print_rich(sections: Sequence[Section]) -> bool:
    """Print with ``rich``; returns whether that is installed."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table as Grid
    except ImportError:
        return False
    console = Console()

    def show(section: Section, level: int) -> None:
        console.print(f"[bold]{'  ' * level}{escape(section.title)}[/bold]")
        if section.lines:
            pairs = Grid.grid(padding=(0, 2))
            for name, value in section.lines:
                pairs.add_row("  " * level + " " + escape(name), escape(value))
            console.print(pairs)
        if section.rows:
            grid = Grid(*section.columns)
            for row in section.rows:
                grid.add_row(*map(escape, row))
            console.print(grid)
        for part in section.parts:
            show(part, level + 1)

    for section in sections:
        show(section, 0)
    return True


def _number(value: float) -> str:
    return f"{round(float(value)):,}"


__all__ = ["UNKNOWN", "Section", "as_text", "print_rich", "repeats", "summary"]
