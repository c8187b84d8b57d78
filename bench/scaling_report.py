"""Tables and plots of what scaling.py measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import TITLES, table

Row = dict[str, Any]
Figure = Callable[[Row, str], float]

TEXTS = {
    "batch": (
        "Batch size",
        "Training with SGD and momentum. Milliseconds a step, and MiB at the peak of the steps.",
    ),
    "depth": (
        "Depth",
        "A BERT of 2 to 16 layers, training, batch 4. Seconds from the first call to a program that is compiled, not "
        "counting the steps: with empty caches, and in a new process that finds them filled; and milliseconds a step.",
    ),
    "accumulation": (
        "Micro-batches",
        "Training with `gradientAccumulation`, beside an eager loop that calls `backward` for each micro-batch (of "
        "64 rows for mlp-large, 2 sequences for bert). Milliseconds a micro-batch, and MiB at the peak of the steps.",
    ),
    "start": (
        "Second start",
        "Training bert-small. *cold* finds empty caches, *warm* is a new process with the caches that cold filled. "
        "Seconds of compilation, as above, and of the whole process with imports and the measured steps.",
    ),
}


def _per_micro_batch(row: Row, name: str) -> float:
    return float(row["ms"][name]) / row["accumulation"]


# What is drawn against what, and the unit: (the key of the rows for the x axis, ((title, figure), ...))
AXES: dict[str, tuple[str, tuple[tuple[str, Figure], ...]]] = {
    "batch": ("batch", (("ms a step", lambda r, n: r["ms"][n]), ("peak MiB", lambda r, n: r["mib"][n]))),
    "depth": (
        "depth",
        (
            ("s to compile", lambda r, n: r["seconds"][n]),
            ("s to start again", lambda r, n: r.get("again", {}).get(n, math.nan)),
            ("ms a step", lambda r, n: r["ms"][n]),
        ),
    ),
    "accumulation": (
        "accumulation",
        (("ms a micro-batch", _per_micro_batch), ("peak MiB", lambda r, n: r["mib"][n])),
    ),
}


def report(data: dict[str, Any], output: Path) -> str:
    """The Markdown file, with the plots that exist."""
    parts = ["# How cost grows", "Written by `bench/scaling.py`; the figures are in the JSON file beside this one."]
    for part, (title, text) in TEXTS.items():
        if part not in data:
            continue
        facts = ", ".join(f"{key}: {value}" for key, value in data[part]["machine"].items())
        parts += [f"## {title}", text, _table(part, data[part]["rows"])]
        if _picture(output, part).exists():
            parts.append(f"![{title}]({_picture(output, part).name})")
        parts.append(facts)
    return "\n\n".join(parts) + "\n"


def _picture(output: Path, part: str) -> Path:
    return output.with_name(f"{output.name}-{part}.svg")


def _names(rows: list[Row]) -> list[str]:
    return [name for name in TITLES if any(name in row["ms"] or name in row["failed"] for row in rows)]


def _table(part: str, rows: list[Row]) -> str:
    if part == "start":
        return _start_table(rows)
    key, figures = AXES[part]
    names = _names(rows)
    header = ["workload"] if "family" in rows[0] else []
    header += [key, *(f"{TITLES[name]}, {unit}" for unit, _ in figures for name in names)]
    lines = []
    for row in rows:
        cells = [row["family"]] if "family" in row else []
        cells.append(str(row[key]))
        for _, figure in figures:
            cells += ["failed" if n in row["failed"] else f"{figure(row, n):.2f}" for n in names]
        lines.append(cells)
    failed = [f"- {key} {row[key]}, {TITLES[n]}: {why}" for row in rows for n, why in row["failed"].items()]
    return "\n\n".join([table(header, lines), *(["\n".join(failed)] if failed else [])])


def _start_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        cold, warm = row["cold"], row["warm"]
        if "error" in cold or "error" in warm:
            lines.append([TITLES[row["contender"]], cold.get("error", "–"), warm.get("error", "–"), "–", "–", "–"])
            continue
        ratio = f"{warm['seconds'] / cold['seconds']:.3f}" if cold["seconds"] else "–"
        seconds = (cold["seconds"], warm["seconds"], cold["process"], warm["process"])
        first, second, *processes = (f"{s:.2f}" for s in seconds)
        lines.append([TITLES[row["contender"]], first, second, ratio, *processes])
    return table(["contender", "cold, s", "warm, s", "warm / cold", "cold process, s", "warm process, s"], lines)


def plot(data: dict[str, Any], output: Path) -> None:
    """One SVG file a part: ``NAME-PART.svg``."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "scaling"  # the same figures give the same file
    from matplotlib import pyplot

    for part in TEXTS:
        if part not in data:
            continue
        figure = _draw_start(pyplot, data[part]["rows"]) if part == "start" else _draw(pyplot, part, data[part]["rows"])
        figure.tight_layout()
        figure.savefig(_picture(output, part), metadata={"Date": None})
        pyplot.close(figure)


def _draw(pyplot: Any, part: str, rows: list[Row]) -> Any:
    key, figures = AXES[part]
    families = list(dict.fromkeys(row.get("family", "bert") for row in rows))
    figure, axes = pyplot.subplots(
        len(families), len(figures), figsize=(4.5 * len(figures), 3.4 * len(families)), squeeze=False
    )
    for line, family in zip(axes, families, strict=True):
        chosen = [row for row in rows if row.get("family", "bert") == family]
        for axis, (unit, value) in zip(line, figures, strict=True):
            for name in _names(chosen):
                good = [row for row in chosen if name not in row["failed"]]
                axis.plot([r[key] for r in good], [value(r, name) for r in good], marker="o", label=TITLES[name])
            axis.set(title=family, xlabel=key, ylabel=unit, xscale="log", ylim=(0, None))
            axis.set_xticks([r[key] for r in chosen], [str(r[key]) for r in chosen])
            axis.minorticks_off()
        line[0].legend()
    return figure


def _draw_start(pyplot: Any, rows: list[Row]) -> Any:
    figure, axis = pyplot.subplots(figsize=(7, 3.4))
    good = [row for row in rows if "error" not in row["cold"] and "error" not in row["warm"]]
    for shift, start in ((-0.2, "cold"), (0.2, "warm")):
        places = [index + shift for index in range(len(good))]
        bars = axis.bar(places, [row[start]["seconds"] for row in good], 0.4, label=start)
        axis.bar_label(bars, fmt="%.1f")
    axis.set_xticks(range(len(good)), [TITLES[row["contender"]] for row in good])
    axis.set(ylabel="s to compile")
    axis.legend()
    return figure
