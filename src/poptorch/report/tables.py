"""Tables as columns of numpy: all columns of a table are equally long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
Table = dict[str, Column]


def rows(table: Table) -> int:
    """How many rows a table has."""
    return len(next(iter(table.values()))) if table else 0


class Rows:
    """A table while it grows, row by row.

    >>> rows = Rows(name=str, bytes=float)
    >>> rows.add(name="x", bytes=8)
    0
    >>> rows.table()["bytes"]
    array([8.])
    """

    _TYPES: Mapping[type, Any] = {str: np.str_, int: np.int64, float: np.float64, bool: np.bool_}

    def __init__(self, **columns: type) -> None:
        self._types = columns
        self._values: dict[str, list[Any]] = {name: [] for name in columns}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, **row: Any) -> int:
        """Add a row that has a value for every column; returns its number."""
        for name, values in self._values.items():
            values.append(row[name])
        self._count += 1
        return self._count - 1

    def set(self, index: int, column: str, value: Any) -> None:
        """Change one value."""
        self._values[column][index] = value

    def table(self) -> Table:
        """All rows as columns."""
        return {name: np.array(values, dtype=self._TYPES[self._types[name]]) for name, values in self._values.items()}


__all__ = ["Column", "Rows", "Table", "rows"]
