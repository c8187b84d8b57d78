"""The files of a report: ``profile.json`` for all tools, and ``profile.pop`` with the same and all tables.

``profile.pop`` is a zip archive. Its members are ``README.txt``, ``profile.json`` and one file for each column of each
table, in numpy's ``.npy`` format: ``tables/<table>/<column>.npy``. ``numpy.load`` and any zip tool open it.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poptorch.errors import createPoptorchError

FORMAT = "poptorch profile"
VERSION = 1
README = """This is a profile by poptorch. It has the name of Poplar's profile, because programs look for a file of that
name, but not its format: neither libpva nor PopVision open it. It is a zip archive with profile.json (all figures and
the schema of the tables) and tables/<table>/<column>.npy (numpy arrays). Read it with poptorch.report.openReport, or
print it with: poptorch report FOLDER
"""

Column = npt.NDArray[Any]
Table = dict[str, Column]


@dataclass
class Profile:
    """What a report consists of: a document of figures, and tables of equally long columns."""

    document: dict[str, Any]
    tables: dict[str, Table] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """The document, with the schema of the tables."""
        schema = {
            name: {
                "rows": rows(table),
                "columns": {column: _type_name(values) for column, values in table.items()},
            }
            for name, table in self.tables.items()
        }
        return {**self.document, "tables": schema}


def rows(table: Table) -> int:
    """How many rows a table has."""
    return len(next(iter(table.values()))) if table else 0


def _type_name(values: Column) -> str:
    return {"U": "text", "b": "bool", "i": "integer", "f": "number"}[values.dtype.kind]


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


def save(folder: Path, profile: Profile) -> None:
    """Write both files; each appears complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(profile.described(), indent=2)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("README.txt", README)
        archive.writestr("profile.json", text)
        for name, table in profile.tables.items():
            for column, values in table.items():
                with archive.open(f"tables/{name}/{column}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, values, allow_pickle=False)
    replace(folder / "profile.json", text.encode())
    replace(folder / "profile.pop", packed.getvalue())


def replace(path: Path, content: bytes) -> None:
    """Write a file that appears complete or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def load(path: Path) -> Profile:
    """Read a profile: the file ``profile.pop``, or the folder with it."""
    file = path / "profile.pop" if path.is_dir() else path
    if not file.is_file():
        raise createPoptorchError(f"There is no report at {path}: {file} does not exist.{_hint(path)}")
    try:
        with zipfile.ZipFile(file) as archive:
            document = json.loads(archive.read("profile.json"))
            if document["format"] != FORMAT or document["version"] > VERSION:
                raise createPoptorchError(f"{file} has version {document['version']}; this poptorch reads {VERSION}.")
            tables: dict[str, Table] = {name: {} for name in document.pop("tables")}
            for member in archive.namelist():
                if member.startswith("tables/"):
                    _, name, column = member.removesuffix(".npy").split("/")
                    with archive.open(member) as data:
                        tables[name][column] = np.lib.format.read_array(data, allow_pickle=False)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise createPoptorchError(
            f"{file} is no profile of poptorch ({error}). Profiles of Poplar have the same name and another format."
        ) from None
    return Profile(document, tables)


def _hint(path: Path) -> str:
    found = sorted(file.parent.name for file in path.glob("*/profile.pop")) if path.is_dir() else []
    return f" There are reports in its folders {_listed(found)}." if found else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def reports_in(path: Path) -> list[Path]:
    """The folders with a report: this one, or those directly in it."""
    if (path / "profile.pop").is_file():
        return [path]
    return sorted(file.parent for file in path.glob("*/profile.pop")) if path.is_dir() else []


__all__ = [
    "FORMAT",
    "README",
    "VERSION",
    "Profile",
    "Column",
    "Rows",
    "Table",
    "load",
    "replace",
    "reports_in",
    "rows",
    "save",
]
