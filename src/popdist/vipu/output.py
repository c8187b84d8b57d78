"""How the commands answer: tables, pairs and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def as_json(value: Any) -> str:
    """The value as JSON text."""
    return json.dumps(value, indent=2) + "\n"


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns with bars between, and rules of dashes around the rows.

    >>> print(table(["Partition", "Size"], [["p", 4]]), end="")
     Partition | Size
    ------------------
     p         | 4
    ------------------
    """
    texts = [list(titles), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(titles))]
    lines = [" " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in texts]
    rule = "-" * (len(lines[0]) + 1)
    return "\n".join(line.rstrip() for line in [lines[0], rule, *lines[1:], rule]) + "\n"


def pairs(values: Mapping[str, object]) -> str:
    """One line for each value, its name first.

    >>> print(pairs({"Size": 4, "State": "ACTIVE"}), end="")
    Size:  4
    State: ACTIVE
    """
    width = max(len(name) for name in values) + 1
    return "".join(f"{name + ':':{width}} {value}\n" for name, value in values.items())
