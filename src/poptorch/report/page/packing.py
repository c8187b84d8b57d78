"""Tables as bytes that a browser reads without parsing: typed arrays after a short JSON header, compressed as a whole.

The layout before compression: four bytes (little-endian) with the length of the header, the header, padding to a
multiple of eight, then the columns, each at a multiple of eight. The header has the figures and, under ``tables``, the
type, the offset and the length of every column. Texts are numbers of ``levels``, a list of the different ones.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from poptorch.report.files import Column, Table, rows

_ALIGN = 8
_INTEGERS = (np.uint8, np.int16, np.uint16, np.int32, np.uint32)
_NAMES = {
    "uint8": "u8",
    "int16": "i16",
    "uint16": "u16",
    "int32": "i32",
    "uint32": "u32",
    "float32": "f32",
    "float64": "f64",
}


def pack(figures: Mapping[str, Any], tables: Mapping[str, Table]) -> bytes:
    """Figures and tables in one compressed block."""
    columns: list[bytes] = []
    offset = 0
    schema: dict[str, Any] = {}
    for name, table in tables.items():
        described: dict[str, Any] = {}
        for column, values in table.items():
            array, extra = _compact(values)
            content = array.tobytes()
            content += bytes(-len(content) % _ALIGN)
            described[column] = {"type": _NAMES[array.dtype.name], "offset": offset, "length": len(array), **extra}
            columns.append(content)
            offset += len(content)
        schema[name] = {"rows": rows(table), "columns": described}
    header = json.dumps({"figures": figures, "tables": schema}, separators=(",", ":")).encode()
    start = len(header).to_bytes(4, "little") + header
    start += bytes(-len(start) % _ALIGN)
    return gzip.compress(b"".join([start, *columns]), compresslevel=6, mtime=0)


def unpack(packed: bytes) -> tuple[dict[str, Any], dict[str, Table]]:
    """The reverse, for tests and tools.

    >>> figures, tables = unpack(pack({"a": 1}, {"t": {"name": np.array(["x", "y", "x"]), "n": np.array([1.5, 2, 3])}}))
    >>> figures["a"], tables["t"]["name"].tolist(), tables["t"]["n"].tolist()
    (1, ['x', 'y', 'x'], [1.5, 2.0, 3.0])
    """
    content = gzip.decompress(packed)
    length = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + length])
    first = 4 + length + (-(4 + length) % _ALIGN)
    types = {short: name for name, short in _NAMES.items()}
    tables: dict[str, Table] = {}
    for name, table in header["tables"].items():
        tables[name] = {}
        for column, described in table["columns"].items():
            at = first + described["offset"]
            values = np.frombuffer(content, types[described["type"]], described["length"], at)
            tables[name][column] = np.array(described["levels"])[values] if "levels" in described else values
    return header["figures"], tables


def as_text(packed: bytes) -> str:
    """Bytes as text for a script element: letters, digits, ``+``, ``/`` and ``=`` only."""
    return base64.b64encode(packed).decode("ascii")


def _compact(values: Column) -> tuple[Column, dict[str, Any]]:
    """The smallest type that keeps the values; what is not a whole number keeps its own."""
    if values.dtype.kind == "U":
        levels, codes = np.unique(values, return_inverse=True)
        return _whole(codes), {"levels": levels.tolist()}
    if values.dtype == np.float32:
        return values, {}
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.rint(values)).all()):
        return values.astype(np.float64), {}
    return _whole(values), {}


def _whole(values: Column) -> Column:
    low, high = (values.min(), values.max()) if len(values) else (0, 0)
    for kind in _INTEGERS:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values.astype(np.float64)


__all__ = ["as_text", "pack", "unpack"]
