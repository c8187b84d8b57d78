"""The table of hosts, link domains, instances and replicas."""

from __future__ import annotations

from collections.abc import Sequence

from popdist.poprun.layout import Layout

_TITLE = "poprun topology"
_LABEL_WIDTH = 11


def table(layout: Layout) -> str:
    """The table, and after it the names of hosts that are too long for their cells.

    >>> from popdist.poprun.layout import Layout
    >>> print(table(Layout(replicas=4, instances=2, ipus_per_replica=1, hosts=("localhost",))))
     ===========================
    |      poprun topology      |
    |===========================|
    | hosts     |   localhost   |
    |-----------|---------------|
    | ILDs      |       0       |
    |-----------|---------------|
    | instances |   0   |   1   |
    |-----------|---------------|
    | replicas  | 0 | 1 | 2 | 3 |
     ---------------------------
    """
    cell = len(str(layout.replicas - 1)) + 2
    width = layout.replicas * (cell + 1) - 1

    def span(count: int) -> int:
        return layout.replicas // count * (cell + 1) - 1

    names, notes = _hosts(layout.shown_hosts, span(len(layout.shown_hosts)))
    rows = [
        _row("hosts", names, span(len(names))),
        _row("ILDs", _numbers(layout.link_domains), span(layout.link_domains)),
        _row("instances", _numbers(layout.instances), span(layout.instances)),
        _row("replicas", _numbers(layout.replicas), cell),
    ]
    inner = _LABEL_WIDTH + 1 + width
    rule = f"|{'-' * _LABEL_WIDTH}|{'-' * width}|"
    lines = [" " + "=" * inner, f"|{_centred(_cut(_TITLE, inner), inner)}|", f"|{'=' * inner}|", rows[0]]
    for row in rows[1:]:
        lines += [rule, row]
    return "\n".join([*lines, " " + "-" * inner, *notes])


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _hosts(names: Sequence[str], width: int) -> tuple[list[str], list[str]]:
    """What the cells say, and a line for each name that does not fit."""
    cells, notes = [], []
    for place, name in enumerate(names):
        if len(name) > width - 2:
            cells.append(f"[{place}]")
            notes.append(f"[{place}]: {name}")
        else:
            cells.append(name)
    return cells, notes


def _row(label: str, cells: Sequence[str], width: int) -> str:
    return f"|{(' ' + label).ljust(_LABEL_WIDTH)}|{'|'.join(_centred(cell, width) for cell in cells)}|"


def _centred(text: str, width: int) -> str:
    """The text in the middle, the odd blank on the right.

    >>> _centred("abc", 6), _centred("abc", 3)
    (' abc  ', 'abc')
    """
    left = (width - len(text)) // 2
    return " " * left + text + " " * (width - len(text) - left)


def _cut(text: str, width: int) -> str:
    """The text, or so much of it as fits with a blank on each side, ended with dots.

    >>> _cut("abcdefgh", 10), _cut("abcdefgh", 9)
    ('abcdefgh', 'abcd...')
    """
    return text if len(text) <= width - 2 else text[: width - 5] + "..."
