"""Pictures of a schedule: what ran on which IPU and when, measured, beside what the strategy asks for."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from poptorch.errors import createPoptorchError
from poptorch.runtime.clock import JobRecord
from poptorch.schedule import Job, Kind, Tick, draw

FORMATS = (".svg", ".png", ".txt")


class Style(enum.Enum):
    """How jobs of a kind look."""

    FORWARD = "F", "forward", "#4c8dd6"
    BACKWARD = "B", "backward", "#e3913d"
    BOTH = "FB", "forward and backward", "#3d9e8f"
    LOAD = "L", "load", "#8fb996"
    STORE = "S", "store", "#b7a1c4"

    def __init__(self, letters: str, title: str, colour: str) -> None:
        self.letters = letters
        self.title = title
        self.colour = colour

    @property
    def mark(self) -> str:
        """One character, for a bar that is too short for its label."""
        return "*" if self is Style.BOTH else self.letters

    @classmethod
    def of(cls, kind: Kind, *, whole: bool = False) -> Style:
        """The look of one kind of job; ``whole``: of a forward job that is both passes."""
        return cls.BOTH if whole else cls[kind.name]


@dataclass(frozen=True)
class Bar:
    """One job in a chart."""

    row: str
    label: str
    style: Style
    start: float
    end: float
    place: tuple[int, ...]
    """Of its row among the others."""


@dataclass(frozen=True)
class Chart:
    """Rows of bars over a common time axis."""

    title: str
    bars: tuple[Bar, ...]
    unit: str

    @property
    def rows(self) -> list[str]:
        """The names of the rows, in order."""
        places = {bar.row: bar.place for bar in self.bars}
        return sorted(places, key=places.__getitem__)

    @property
    def duration(self) -> float:
        """The time of the last bar's end."""
        return max((bar.end for bar in self.bars), default=0.0)

    @property
    def heading(self) -> str:
        """The title with the duration and the share of idle time."""
        digits = "g" if self.unit == "ticks" else ".2f"
        return f"{self.title}: {self.duration:{digits}} {self.unit}, {self.idle:.0%} idle"

    @property
    def styles(self) -> list[Style]:
        """The styles of the jobs that occur."""
        return [style for style in Style if any(bar.style is style for bar in self.bars)]

    @property
    def idle(self) -> float:
        """The share of the IPUs' time that no bar covers: the bubbles."""
        if not self.bars or not self.duration:
            return 0.0
        ipus = {bar.place[:2] for bar in self.bars}
        busy = sum(_covered(b for b in self.bars if b.place[:2] == ipu) for ipu in ipus)
        return 1.0 - busy / (self.duration * len(ipus))


def ideal_chart(ticks: Sequence[Tick]) -> Chart:
    """The schedule of the strategy; every job takes one tick."""
    jobs = [(now, ipu, job) for now, tick in enumerate(ticks) for ipu, job in enumerate(tick.jobs) if job is not None]
    short = all(job.part == ipu for _, ipu, job in jobs)
    bars = []
    for now, ipu, job in jobs:
        style = Style.of(job.kind)
        bars.append(Bar(f"IPU{ipu}", _label(job, style, short), style, now, now + 1, (ipu,)))
    return Chart("ideal", tuple(bars), "ticks")


def measured_chart(spans: Sequence[JobRecord]) -> Chart:
    """What the workers did in one accumulation round; times in milliseconds from its first job.

    Jobs of one IPU that ran side by side, because the host had a core to spare, have a row each.
    """
    origin = min((span.start for span in spans), default=0.0)
    replicated = any(span.task.replica for span in spans)
    short = all(span.task.job.part == span.task.ipu for span in spans)
    ends: dict[tuple[int, int], list[float]] = {}  # of each row of an IPU, by replica and IPU
    bars = []
    for span in sorted(spans, key=lambda s: s.start):
        task = span.task
        rows = ends.setdefault((task.replica, task.ipu), [])
        free = next((i for i, end in enumerate(rows) if end <= span.start), len(rows))
        rows[free : free + 1] = [span.end]
        name = f"IPU{task.ipu}" + f" of replica {task.replica}" * replicated + f" ({free + 1})" * bool(free)
        start, end = (span.start - origin) * 1e3, (span.end - origin) * 1e3
        style = Style.of(task.job.kind, whole=task.whole)
        label = _label(task.job, style, short, task.members)
        bars.append(Bar(name, label, style, start, end, (task.replica, task.ipu, free)))
    workers = len({span.worker for span in spans})
    return Chart(f"measured, {workers} worker{'s' * (workers != 1)}", tuple(bars), "ms")


def as_text(ticks: Sequence[Tick], spans: Sequence[JobRecord], columns: int = 72) -> str:
    """Both charts as text: one character of the measured one stands for an equal share of the time.

    A job that is too short there for its label shows its letter only, or ``*`` for both passes in one.

    >>> print(as_text([Tick.parse("0F ."), Tick.parse("1F 0F"), Tick.parse(". 1F")], []))
    ideal, 33 % idle
    IPU0 | 0F 1F .
    IPU1 | .  0F 1F
    """
    ideal = ideal_chart(ticks)
    lines = [f"ideal, {ideal.idle:.0%} idle".replace("%", " %"), draw(ticks)]
    if spans:
        chart = measured_chart(spans)
        lines.append(f"{chart.title}, {chart.duration:.2f} ms, {chart.idle:.0%} idle".replace("%", " %"))
        edge = max(map(len, chart.rows))
        for row in chart.rows:
            lines.append(f"{row:<{edge}} | {_text_row(chart, row, columns)}".rstrip())
    return "\n".join(lines)


def _text_row(chart: Chart, row: str, columns: int) -> str:
    cells = ["."] * columns
    scale = columns / chart.duration if chart.duration else 0.0
    for bar in (b for b in chart.bars if b.row == row):
        first = min(int(bar.start * scale), columns - 1)
        last = min(max(int(bar.end * scale), first + 1), columns)
        text = bar.label if len(bar.label) <= last - first else bar.style.mark
        cells[first:last] = text.ljust(last - first, "-")
    return "".join(cells)


def charts(ticks: Sequence[Tick], spans: Sequence[JobRecord]) -> list[Chart]:
    """What the strategy asks for and, if something ran, what was measured."""
    return [ideal_chart(ticks), *([measured_chart(spans)] if spans else [])]


def save(path: str | Path, ticks: Sequence[Tick], spans: Sequence[JobRecord]) -> Path:
    """Write the picture; the suffix of ``path`` chooses the format."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise createPoptorchError(
            f"Cannot draw a schedule as {path.name!r}: the suffix must be one of {', '.join(FORMATS)}."
        )
    if path.suffix == ".txt":
        path.write_text(as_text(ticks, spans) + "\n", encoding="utf-8")
    elif path.suffix == ".svg":
        path.write_text(as_svg(charts(ticks, spans)), encoding="utf-8")
    else:
        _save_png(path, charts(ticks, spans))
    return path


# -- svg -----------------------------------------------------------------------------------------------------------

_WIDTH, _ROW, _TITLE, _MARGIN = 960, 26, 34, 10


def as_svg(charts: Sequence[Chart]) -> str:
    """The charts below each other as one SVG document; every bar carries its times as a tooltip."""
    label_width = 9 + 7 * max((len(row) for chart in charts for row in chart.rows), default=4)
    parts, top = [], _MARGIN
    for chart in charts:
        parts += _svg_chart(chart, top, label_width)
        top += _TITLE + _ROW * len(chart.rows) + _MARGIN
    parts += _svg_legend(charts, top, label_width)
    height = top + _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _svg_chart(chart: Chart, top: int, left: int) -> list[str]:
    span = _WIDTH - left - _MARGIN
    scale = span / chart.duration if chart.duration else 0.0
    parts = [f'<text x="{_MARGIN}" y="{top + 18}" font-weight="bold">{escape(chart.heading)}</text>']
    for number, row in enumerate(chart.rows):
        y = top + _TITLE - 8 + number * _ROW
        parts.append(f'<text x="{_MARGIN}" y="{y + 16}">{escape(row)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{span}" height="{_ROW - 4}" fill="#f1f1f1"/>')
        for bar in (b for b in chart.bars if b.row == row):
            x, width = left + bar.start * scale, max((bar.end - bar.start) * scale, 0.5)
            tip = f"{bar.label}: {bar.start:.3f} to {bar.end:.3f} {chart.unit}"
            parts.append(
                f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 4}" fill="{bar.style.colour}" '
                f'stroke="white"><title>{escape(tip)}</title></rect>'
            )
            if width > 7 * len(bar.label):
                parts.append(
                    f'<text x="{x + width / 2:.2f}" y="{y + 15}" text-anchor="middle" fill="white" '
                    f'pointer-events="none">{escape(bar.label)}</text>'
                )
    return parts


def _svg_legend(charts: Sequence[Chart], top: int, left: int) -> list[str]:
    parts = []
    x = left
    for style in _all_styles(charts):
        parts.append(f'<rect x="{x}" y="{top}" width="14" height="14" fill="{style.colour}"/>')
        parts.append(f'<text x="{x + 20}" y="{top + 12}">{style.title}</text>')
        x += max(110, 34 + 7 * len(style.title))
    return parts


def _save_png(path: Path, charts: Sequence[Chart]) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as why:
        raise createPoptorchError(
            "Drawing a schedule as PNG needs matplotlib: install it with `pip install poptorch[report]`, or choose a "
            "name that ends in .svg or .txt, which need nothing."
        ) from why
    heights = [len(chart.rows) + 2 for chart in charts]
    figure = Figure(figsize=(_WIDTH / 96, 0.3 * sum(heights) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights)
    for chart, axis in zip(charts, axes[:, 0], strict=True):
        png_chart(chart, axis)
    handles = [Patch(color=style.colour, label=style.title) for style in _all_styles(charts)]
    figure.legend(handles=handles, loc="outside lower center", ncols=max(len(handles), 1), frameon=False)
    figure.savefig(path, dpi=96)


def png_chart(chart: Chart, axis: Any) -> None:
    """Draw a chart on the axis of a Matplotlib figure."""
    numbers = {row: number for number, row in enumerate(chart.rows)}
    for bar in chart.bars:
        y, width = numbers[bar.row], bar.end - bar.start
        axis.barh(y, width, left=bar.start, color=bar.style.colour, edgecolor="white", linewidth=0.5)
        if width > 0.011 * len(bar.label) * chart.duration:  # wide enough for its label
            middle = bar.start + width / 2
            axis.text(middle, y, bar.label, ha="center", va="center", color="white", fontsize=9)
    axis.set_yticks(range(len(numbers)), list(numbers))
    axis.set_ylim(len(numbers) - 0.5, -0.5)  # the first row on top
    axis.set_xlim(0, chart.duration or 1.0)
    if chart.unit == "ticks":
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_facecolor("#f1f1f1")
    axis.set_xlabel(chart.unit)
    axis.set_title(chart.heading, loc="left")


def _all_styles(charts: Sequence[Chart]) -> list[Style]:
    return [style for style in Style if any(style in chart.styles for chart in charts)]


def _label(job: Job, style: Style, short: bool, members: int = 1) -> str:
    first = job.micro * members
    micro = str(first) if members == 1 else f"{first}-{first + members - 1}"
    return f"{micro}{style.letters}" + ("" if short else f"@{job.part}")


def _covered(bars: Iterable[Bar]) -> float:
    """Time under at least one of the bars."""
    total, reached = 0.0, float("-inf")
    for bar in sorted(bars, key=lambda b: b.start):
        total += max(0.0, bar.end - max(bar.start, reached))
        reached = max(reached, bar.end)
    return total
