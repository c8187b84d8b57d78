"""The files of a report: ``profile.json`` for all tools, and ``profile.pop`` with the same and all tables.

``profile.pop`` is a zip archive. Its members are ``README.txt``, ``profile.json`` and one file for each column of each
table, in numpy's ``.npy`` format: ``tables/<table>/<column>.npy``. ``numpy.load`` and any zip tool open it.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from poptorch.errors import Error, createPoptorchError
from poptorch.report.checking import MOST_DOCUMENT_BYTES, check_document, check_sizes, check_tables, column
from poptorch.report.tables import Column, Rows, Table, rows
from poptorch_files import parse_json, replace

FORMAT = "poptorch profile"
VERSION = 1
README = """This is a profile by poptorch. It has the name of Poplar's profile, because programs look for a file of that
name, but not its format: neither libpva nor PopVision open it. It is a zip archive with profile.json (all figures and
the schema of the tables) and tables/<table>/<column>.npy (numpy arrays). Read it with poptorch.report.openReport, or
print it with: poptorch report FOLDER
"""


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


def _type_name(values: Column) -> str:
    return {"U": "text", "b": "bool", "i": "integer", "f": "number"}[values.dtype.kind]


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


def load(path: Path) -> Profile:
    """Read a profile: the file ``profile.pop``, or the folder with it. Whatever else it is, is ``poptorch.Error``."""
    file = path / "profile.pop" if path.is_dir() else path
    if not file.is_file():
        raise createPoptorchError(f"There is no report at {path}: {file} does not exist.{_hint(path)}")
    try:
        with zipfile.ZipFile(file) as archive:
            return _read(archive, file)
    except Error:
        raise
    except Exception as error:  # noqa: BLE001 - what readers of zip files, numpy and JSON raise for damaged files is not documented
        detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise createPoptorchError(
            f"{file} is no profile of poptorch ({detail[:300]}). Profiles of Poplar have the same name and another "
            "format; a profile that was cut off or changed must be written again."
        ) from None


def _read(archive: zipfile.ZipFile, file: Path) -> Profile:
    check_sizes(archive.infolist())
    if archive.getinfo("profile.json").file_size > MOST_DOCUMENT_BYTES:
        raise ValueError("profile.json is too large")
    document = parse_json(archive.read("profile.json"))
    if document["format"] != FORMAT or document["version"] > VERSION:
        shown = str(document["version"])[:20]
        raise createPoptorchError(f"{file} has version {shown}; this poptorch reads {VERSION}.")
    tables: dict[str, Table] = {name: {} for name in document.pop("tables")}
    for member in archive.namelist():
        if member.startswith("tables/"):
            _, name, title = member.removesuffix(".npy").split("/")
            tables[name][title] = column(archive.read(member))
    check_document(document)
    check_tables(tables, document)
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
    "reports_in",
    "rows",
    "save",
]
