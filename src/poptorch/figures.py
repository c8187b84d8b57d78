"""Figures for people: bytes and times in units, and columns of texts that stand below each other."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class Shown:
    """Something whose text is a table or a program: notebooks show it in columns, too.

    >>> class Table(Shown):
    ...     def __str__(self):
    ...         return "a < b"
    >>> Table()._repr_html_()
    '<pre style="line-height: 1.25">a &lt; b</pre>'
    """

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.25">{escape(str(self), quote=False)}</pre>'


class Drawing(str):
    """A drawing in letters, which notebooks show as a picture.

    >>> drawing = Drawing.of("IPU0 | 0F", "<svg></svg>")
    >>> drawing, drawing._repr_html_()
    ('IPU0 | 0F', '<svg></svg>')
    """

    svg: str

    @classmethod
    def of(cls, text: str, svg: str) -> Drawing:
        """The same drawing in both forms."""
        drawing = cls(text)
        drawing.svg = svg
        return drawing

    def _repr_html_(self) -> str:
        return self.svg


def byte_size(size: float) -> str:
    """Bytes in a unit that people read.

    >>> byte_size(100), byte_size(638976), byte_size(3e6), byte_size(5 << 30)
    ('100 B', '624.0 KiB', '2.9 MiB', '5.0 GiB')
    """
    size = float(size)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def time_span(seconds: float) -> str:
    """A time that was measured or computed, in the unit that suits it.

    >>> time_span(0.00123), time_span(2.5), time_span(4e-7)
    ('1.23 ms', '2.5 s', '400 ns')
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def age(seconds: float) -> str:
    """How long something has lasted.

    >>> age(5), age(65), age(7260), age(200000)
    ('5s', '1m5s', '2h1m', '2d7h')
    """
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60}m"
    return f"{whole // 86400}d{whole // 3600 % 24}h"


def columns(rows: Sequence[Sequence[str]], sides: str = "", least: Sequence[int] = (), gap: int = 2) -> list[str]:
    """A line for each row. ``sides`` says for each column whether its texts stand at its left (``<``) or right (``>``).

    Columns that are not mentioned are left, and as wide as their widest text; ``least`` is the width of narrow ones.

    >>> print(*columns([["name", "bytes"], ["weights", "8"]], "<>"), sep="\\n")
    name     bytes
    weights      8
    """
    needed = [max(map(len, texts)) for texts in zip(*rows, strict=True)]
    widths = [max(width, least[place] if place < len(least) else 0) for place, width in enumerate(needed)]
    aligned = sides.ljust(len(widths), "<")
    lines = ([f"{text:{side}{width}}" for text, side, width in zip(row, aligned, widths, strict=True)] for row in rows)
    return [(" " * gap).join(line).rstrip() for line in lines]


def boxed(title: str, names: Sequence[str], blocks: Sequence[Sequence[Sequence[str]]]) -> str:
    """A table with lines around it, and a rule between blocks of rows.

    >>> print(boxed("Title", ["a", "b"], [[["1", "2"]], [["3", "4"]]]))
    +-------+
    | Title |
    +---+---+
    | a | b |
    +---+---+
    | 1 | 2 |
    +---+---+
    | 3 | 4 |
    +---+---+
    """
    rows = [names, *(row for block in blocks for row in block)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(names))] or [0]
    widths[-1] += max(0, len(title) - sum(widths) - 3 * (len(widths) - 1))
    width = sum(widths) + 3 * (len(widths) - 1)
    rule = f"+{'+'.join('-' * (each + 2) for each in widths)}+"
    lines = [f"+{'-' * (width + 2)}+", f"| {title.center(width)} |", rule]
    for block in [[names], *blocks] if names else []:
        lines += [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in block]
        lines.append(rule)
    return "\n".join(lines)
