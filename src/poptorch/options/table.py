"""The option table: every option of the package is one row, and adding an option is adding a row.

Setters, defaults, type checks, documentation and ``docs/compatibility.md`` are all made from it.

>>> [row.method for row in rows_of("Jit")]
['traceModel']
"""

from __future__ import annotations

from poptorch.options.entries_general import GENERAL
from poptorch.options.entries_groups import GROUPS
from poptorch.options.rows import Key, Option

OPTIONS: tuple[Option, ...] = GENERAL + GROUPS
"""All rows, in the order of the documentation."""


def rows_of(group: str) -> list[Option]:
    """The rows of one group: ``"Options"``, ``"Training"``, …, ``"TensorLocationSettings"``."""
    return [row for row in OPTIONS if row.group == group]


def keys_of(group: str) -> dict[str, Key]:
    """The keys that a group keeps itself, by name."""
    return {key.name: key for row in rows_of(group) for key in row.keys if key.store == "container"}


def python_side_keys(group: str) -> dict[str, Key]:
    """The settings of a group that never reach the backend, by name."""
    return {key.name: key for row in rows_of(group) for key in row.keys if key.store == "python"}


ROWS_BY_NAME: dict[str, Option] = {f"{row.group}.{row.method}": row for row in OPTIONS}
"""Each row under its group and setter: ``"Training.gradientAccumulation"``."""
