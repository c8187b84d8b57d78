"""The rows of bench/results.json: who is in them, the ratios between them, and the tables made from them.

A row is one workload in one mode: ``ms`` (median milliseconds a step), ``failed`` (why there is no figure) and
``memory`` (MiB, see memory.py), each by contender; and the ``commit`` that the times are of.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]

MODES = ("train-sgd", "train-adamw", "inference")
EAGER = ("eager", "eager-foreach", "eager-fused")
COMPILED = {"compile": None, "compile-max": "max-autotune"}
PEERS = (*EAGER, *COMPILED)
OURS = ("ours-interpret", "ours-native")
TITLES = {
    "eager": "eager", "eager-foreach": "eager foreach", "eager-fused": "eager fused", "compile": "compile",
    "compile-max": "compile max-autotune", "ours-interpret": "ours interpret", "ours-native": "ours native",
}  # fmt: skip


def contenders_of(mode: str) -> tuple[str, ...]:
    """Who takes part: the variants of eager PyTorch differ in the optimizer only."""
    return tuple(n for n in (*PEERS, *OURS) if mode != "inference" or n not in EAGER[1:])


def best_peer(row: Row) -> str | None:
    """The peer with the smallest time; ``None`` when all of them failed."""
    return min((n for n in PEERS if n in row["ms"]), key=row["ms"].__getitem__, default=None)


def speed_up(row: Row, ours: str, peer: str | None = None) -> float | None:
    """How many times as fast ours is as a peer, or as the best one; ``None`` without a measurement of both."""
    peer = peer or best_peer(row)
    if peer not in row["ms"] or ours not in row["ms"]:
        return None
    return row["ms"][peer] / row["ms"][ours]


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(rows: list[Row]) -> Iterator[str]:
    """For training and for inference: means and minima of each of our levels."""
    for kind in ("training", "inference"):
        chosen = [row for row in rows if (row["mode"] == "inference") == (kind == "inference")]
        for ours, peer in ((OURS[0], None), (OURS[1], None), (OURS[0], "eager")):
            values = {f"{row['workload']} {row['mode']}": speed_up(row, ours, peer) for row in chosen}
            known = {name: value for name, value in values.items() if value is not None}
            if not known:
                continue
            lowest = min(known, key=known.__getitem__)
            missing = f", {len(values) - len(known)} not measured" if len(known) < len(values) else ""
            yield (
                f"{kind}, {TITLES[ours]} against {peer or 'the best peer'}: geometric mean "
                f"{geometric_mean(known.values()):.2f}, lowest {known[lowest]:.2f} ({lowest}){missing}"
            )


def table(header: list[str], lines: Iterable[list[str]]) -> str:
    """Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *lines))


def _title(name: str | None) -> str:
    return TITLES[name] if name else "–"


def _figure(row: Row, name: str | None, kind: str = "ms") -> str:
    value = row.get(kind, {}).get(name)
    if value is not None:
        return f"{value:.3f}" if value < 10 else f"{value:.1f}"
    return "failed" if name in row.get("failed", {}) else "–"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _auto(row: Row) -> str:
    if "auto" not in row:
        return "–"
    calls = row["auto"]["native_after"]
    return "interpret" if calls is None else f"native after call {calls}"


def times(rows: list[Row]) -> str:
    """Milliseconds and ratios."""
    names = [*PEERS, *OURS]
    header = ["workload", "mode", *(TITLES[n] for n in names), "best peer"]
    header += ["interpret / best peer", "native / best peer", "interpret / eager", "`auto`", "GEMM floor"]
    lines = []
    for row in rows:
        ratios = [speed_up(row, OURS[0]), speed_up(row, OURS[1]), speed_up(row, OURS[0], "eager")]
        cells = [row["workload"], row["mode"], *(_figure(row, n) for n in names), _title(best_peer(row))]
        floor = f"{row['floor']:.3f}" if "floor" in row else "–"
        lines.append([*cells, *map(_ratio, ratios), _auto(row), floor])
    return table(header, lines)


def memory(rows: list[Row], figure: str) -> str:
    """MiB of each contender, and ours beside eager's."""
    names = [*PEERS, *OURS]
    lines = []
    for row in rows:
        values = {name: each[figure] for name, each in row.get("memory", {}).items()}
        if not values:
            continue
        cells = [_figure({"mib": values, "failed": row.get("failed", {})}, n, "mib") for n in names]
        ratios = [values[n] / values["eager"] if n in values and values.get("eager") else None for n in OURS]
        lines.append([row["workload"], row["mode"], *cells, *map(_ratio, ratios)])
    header = ["workload", "mode", *(TITLES[n] for n in names), "interpret / eager", "native / eager"]
    return table(header, lines) if lines else "Not measured."


def failures(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        for name, reason in row.get("failed", {}).items():
            yield f"{row['workload']} {row['mode']}, {TITLES[name]}: {reason}"


def of_other_commits(data: dict[str, Any]) -> Iterator[str]:
    """What an interrupted run that went on later must say."""
    others: dict[str, list[str]] = {}
    for row in data["results"]:
        if row.get("commit") != data["machine"]["commit"]:
            others.setdefault(row.get("commit", "an earlier commit"), []).append(f"{row['workload']} {row['mode']}")
    for commit, names in others.items():
        yield f"measured at {commit}: {', '.join(names)}"


def report(data: dict[str, Any]) -> str:
    """The whole of bench/results.md."""
    rows = data["results"]
    facts = [f"- {key}: {value}" for key, value in data["machine"].items()]
    facts += [f"- {line}" for line in of_other_commits(data)]
    parts = [
        "# Benchmark results",
        "Medians of milliseconds a step, contenders in turn in one process. Ratios of times say how many times as fast "
        "ours is: larger is better, 1 is equal. `auto`, the default, interprets the first calls and then runs native "
        "code; its column says when, or that the program stays interpreted. The GEMM floor is the time that the "
        "floating-point operations of the step would take at the measured peak of a matrix product with all threads. "
        "In `mlp-tiny-d100` a call of ours does 100 steps (`deviceIterations(100)`).",
        "\n".join(facts),
        "\n".join(f"- {line}" for line in summary(rows)),
        "## Time",
        times(rows),
        "## Peak memory of the steps",
        "MiB of weights, gradients, optimizer state, activations and workspaces at their highest while steps run; how "
        "it is measured is described in [memory.py](memory.py). Ratios: smaller is better.",
        memory(rows, "peak"),
        "## Peak memory of the start",
        "MiB that building, compiling and the first steps add to the imports at their highest, in a process whose "
        "compiler cache may have been filled by an earlier row.",
        memory(rows, "startup"),
        "## What failed",
        "\n".join(f"- {line}" for line in failures(rows)) or "Nothing.",
    ]
    return "\n\n".join(parts) + "\n"


SHOWN = [
    "mlp-tiny-d100 train-sgd",
    "resnet18-64 train-sgd",
    "bert-small train-adamw",
    "gpt-mini inference",
    "unet inference",
]
"""The rows of README.md, one of each kind of work; the summary below them is over all rows."""


def short_table(data: dict[str, Any]) -> str:
    """What README.md shows: both our levels beside the best peer for a few rows, and what all rows say together."""
    lines = []
    for row in data["results"]:
        if f"{row['workload']} {row['mode']}" not in SHOWN:
            continue
        peer = best_peer(row)
        ours = [f"{_figure(row, n)} ({_ratio(speed_up(row, n))})" for n in OURS]
        lines.append([row["workload"], row["mode"], f"{_figure(row, peer)} {_title(peer)}", *ours])
    header = ["workload", "mode", "best peer, ms", "interpret, ms (ratio)", "native, ms (ratio)"]
    facts = ", ".join(f"{key}: {value}" for key, value in data["machine"].items() if key != "note")
    means = " ".join(_in_a_sentence(kind, data["results"]) for kind in ("training", "inference"))
    return f"{table(header, lines)}\n\n{means}\n\nMachine: {facts}."


def _in_a_sentence(kind: str, rows: list[Row]) -> str:
    """Geometric mean and lowest ratio of both levels over all rows of a kind."""
    chosen = [row for row in rows if (row["mode"] == "inference") == (kind == "inference")]
    parts = []
    for ours in reversed(OURS):
        known = [value for row in chosen if (value := speed_up(row, ours, None)) is not None]
        mean = f"{geometric_mean(known):.2f} (lowest {min(known):.2f})" if known else "not measured"
        parts.append(f"{TITLES[ours]} {mean}")
    return f"All {len(chosen)} rows of {kind}, geometric mean against the best peer: {', '.join(parts)}."


def load(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data
