"""What a profile must be before anything is made of it: files come from anywhere, and may say anything.

Sizes are checked against the file before memory is taken for them. Then the document and the tables must have all parts
that readers use, with the right types; numbers of rows must be rows that exist.
"""

from __future__ import annotations

import ast
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from poptorch.report.programs import ProgramType
from poptorch.report.tables import Column, Table, rows

MOST_BYTES = 2 << 30
"""Of all members of the archive, unpacked."""

MOST_DOCUMENT_BYTES = 256 << 20

_DENSEST = 1100
"""How many bytes a byte of the archive can stand for; deflate reaches 1032."""

_LARGEST_NUMBER = 2**63
_MAY_BE_INFINITE = "the document: estimate: throughput"
"""Of a model that takes no time."""


def check_sizes(members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse an archive that claims more than it can hold, or more than a profile can need."""
    total = sum(member.file_size for member in members)
    if total > MOST_BYTES:
        raise ValueError(f"it claims {total} bytes, and a profile has at most {MOST_BYTES}")
    names = set[str]()
    for member in members:
        if member.file_size > _DENSEST * (member.compress_size + 1):
            raise ValueError(f"{member.filename!r} claims {member.file_size} bytes in {member.compress_size}")
        if member.filename in names:
            raise ValueError(f"{member.filename!r} is there twice")
        names.add(member.filename)


# -- columns -----------------------------------------------------------------------------------------------------------

_MAGIC = b"\x93NUMPY"
_HEADER_SIZES = {1: "<H", 2: "<I", 3: "<I"}
_KINDS = "Ubif"


def column(content: bytes) -> Column:
    """The array in the bytes of a ``.npy`` file: one dimension of texts, truth values or numbers.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.array([1.5, 2.0]))
    >>> column(file.getvalue())
    array([1.5, 2. ])
    """
    if not content.startswith(_MAGIC) or len(content) < 12 or content[6] not in _HEADER_SIZES:
        raise ValueError("a column is no array of numpy")
    form = _HEADER_SIZES[content[6]]
    (size,) = struct.unpack_from(form, content, 8)
    start = 8 + struct.calcsize(form)
    if size > 10_000 or start + size > len(content):
        raise ValueError(f"a header of {size} bytes")
    header = ast.literal_eval(content[start : start + size].decode("latin1"))
    shape, described = header["shape"], header["descr"]
    if not isinstance(described, str) or len(described) > 20 or not isinstance(shape, tuple) or len(shape) != 1:
        raise ValueError("a column of another form than one row of values")
    kind, count, left = np.dtype(described), shape[0], len(content) - start - size
    if kind.kind not in _KINDS or type(count) is not int or count < 0 or count * kind.itemsize != left:
        raise ValueError(f"a column of {count!r} values of type {described}, and {left} bytes")
    if not kind.itemsize:  # texts that are all empty
        return np.zeros(0 if count > left else count, dtype="U1")
    return np.frombuffer(content, kind, count, start + size).copy()


# -- the document ------------------------------------------------------------------------------------------------------


class _Each:
    """A list, or the values of a dictionary, of one form."""

    def __init__(self, form: Any, kind: type[Any] = list) -> None:
        self.form, self.kind = form, kind


_NUMBER = (int, float)
_BY_NAME = _Each(_NUMBER, dict)

_DOCUMENT: Mapping[str, Any] = {
    "model": str,
    "training": bool,
    "target": {
        "architecture": str,
        **dict.fromkeys(
            (
                "numIPUs", "numReplicas", "ipusPerReplica", "tilesPerIpu", "ioTiles", "numTiles", "bytesPerTile",
                "totalMemory",
            ),
            int,
        ),
        "clockFrequencyInHz": _NUMBER,
    },
    "graph": dict.fromkeys(("numVertices", "numVars", "numComputeSets", "numExchanges", "numOperations"), int),
    "loop": {"microBatch": _NUMBER},
    "memory": {
        "ipus": _Each({
            "ipu": int,
            "fits": bool,
            **dict.fromkeys(("includingGaps", "excludingGaps", "alwaysLive", "notAlwaysLive"), _NUMBER),
            **dict.fromkeys(("maxTile", "maxTileBytes", "tilesOverLimit"), _NUMBER),
            "byCategory": _BY_NAME,
            "largest": _Each({"name": str, "what": str, "bytes": _NUMBER}),
        }),
    },
    "estimate": {
        **dict.fromkeys(("cycles", "seconds", "throughput", "latency", "bubble"), _NUMBER),
        "boundBy": str,
        "cyclesByResource": _BY_NAME,
        "stages": _Each({"label": str, "ipu": int, "cycles": _NUMBER, "flops": _NUMBER}),
        "suggestions": _Each(str),
        "assumptions": _Each(str),
        "uncoveredOps": _BY_NAME,
    },
    "execution": {
        "runs": _Each({"name": str, "seconds": _NUMBER, "kinds": _Each({"count": _NUMBER}, dict)}),
    },
}  # fmt: skip
"""What readers use of it; there may be more."""

_FINDING = ("level", "kind", "title", "text", "action", "effect", "tab", "source", "layer", "operation")
_POSITIVE = ("numIPUs", "numReplicas", "ipusPerReplica", "tilesPerIpu", "numTiles", "bytesPerTile")


def check_document(document: Any) -> None:
    """Refuse a document that lacks something, or has it with another type."""
    _check(document, _DOCUMENT, "the document")
    target, ipus = document["target"], document["memory"]["ipus"]
    for name in _POSITIVE:
        if target[name] < 1:
            raise ValueError(f"target.{name} is {target[name]}")
    if not 0 <= target["ioTiles"] < target["tilesPerIpu"]:
        raise ValueError(f"target.ioTiles is {target['ioTiles']}")
    if target["numTiles"] != target["tilesPerIpu"] * target["ipusPerReplica"]:
        raise ValueError(f"target.numTiles is {target['numTiles']}")
    if len(ipus) != target["ipusPerReplica"]:
        raise ValueError(f"memory.ipus has {len(ipus)} entries for {target['ipusPerReplica']} IPUs")
    if set(document["graph"]) != set(_DOCUMENT["graph"]):
        raise ValueError(f"graph has {', '.join(sorted(document['graph']))}")
    finding = {**dict.fromkeys(_FINDING, str), "share": _NUMBER}
    _check(document["estimate"].get("findings", []), _Each(finding), "estimate.findings")
    for found in document["estimate"].get("findings", []):
        if found["level"] not in ("problem", "hint", "note"):
            raise ValueError(f"estimate.findings has the level {found['level']!r}")
    _check(document["estimate"].get("round", {"microBatches": 0}), {"microBatches": _NUMBER}, "estimate.round")


def _check(value: Any, form: Any, where: str) -> None:
    if isinstance(form, Mapping):
        if not isinstance(value, dict):
            raise TypeError(f"{where} is {type(value).__name__}")
        for name, part in form.items():
            if name not in value:
                raise KeyError(f"{where} has no {name!r}")
            _check(value[name], part, f"{where}: {name}")
    elif isinstance(form, _Each):
        if not isinstance(value, form.kind):
            raise TypeError(f"{where} is {type(value).__name__}")
        items: list[Any] = list(value.values() if isinstance(value, dict) else value)
        for item in items:
            _check(item, form.form, where)
    elif not isinstance(value, form) or (isinstance(value, bool) and form is not bool):
        raise TypeError(f"{where} is {type(value).__name__}")
    elif isinstance(value, _NUMBER) and not abs(value) < _LARGEST_NUMBER and where != _MAY_BE_INFINITE:
        raise ValueError(f"{where} is {value:.3g}" if isinstance(value, float) else f"{where} is too large")


# -- tables ------------------------------------------------------------------------------------------------------------


def _columns(**kinds: str) -> dict[str, str]:
    return {name: kind for kind, names in kinds.items() for name in names.split()}


_TABLES: Mapping[str, Mapping[str, str]] = {
    "programs": _columns(
        U="type name", i="parent ipu operation repeat tiles",
        f="cycles tile_cycles total_cycles exchange_bytes code_bytes control_bytes",
    ),
    "vertices": _columns(U="type", i="program per_tile total state_bytes code_bytes"),
    "operations": _columns(
        U="name operator layer sweep stage", i="ipu first_program last_program liveness_step", b="recomputed covered",
        f="bytes",
    ),
    "liveness": _columns(U="name layer", i="ipu operation tiles", f="bytes temporary"),
    "tiles": {},
}  # fmt: skip
_OPTIONAL: Mapping[str, Mapping[str, str]] = {
    "operations": _columns(U="source", f="flops cycles compute exchange sync"),
    "programs": _columns(f="inside"),
    "variables": _columns(U="name category layer", i="ipu first_tile tiles first_step last_step", f="bytes tile_bytes"),
    "jobs": _columns(U="stage", i="ipu micro tick", f="start cycles"),
    "spans": _columns(U="kind label", i="run part micro replica worker", f="start end"),
}
_REFERENCES = {
    ("programs", "operation"): "operations", ("vertices", "program"): "programs",
    ("operations", "first_program"): "programs", ("operations", "last_program"): "programs",
    ("operations", "liveness_step"): "liveness", ("liveness", "operation"): "operations",
}  # fmt: skip
"""Columns with numbers of rows; -1 stands for none, except for vertices and the programs of operations."""

_NEVER_NONE = {("vertices", "program"), ("operations", "first_program"), ("operations", "last_program")}


def check_tables(tables: Mapping[str, Table], document: Mapping[str, Any]) -> None:
    """Refuse tables that lack a column, or that speak of rows, programs and IPUs that are not there."""
    for name, columns in _TABLES.items():
        if name not in tables:
            raise KeyError(f"there is no table {name!r}")
        for column_name in columns:
            if column_name not in tables[name]:
                raise KeyError(f"table {name!r} has no column {column_name!r}")
    for name, table in tables.items():
        kinds = {**_TABLES.get(name, {}), **_OPTIONAL.get(name, {})}
        _check_table(name, table, kinds)
    for name in ("variables", "jobs", "spans"):
        if name in tables and (missing := set(_OPTIONAL[name]) - set(tables[name])):
            raise KeyError(f"table {name!r} has no column {sorted(missing)[0]!r}")
    _check_references(tables, document)


def _check_table(name: str, table: Table, kinds: Mapping[str, str]) -> None:
    count = rows(table)
    for column_name, values in table.items():
        kind = "f" if name == "tiles" else kinds.get(column_name, values.dtype.kind)
        if values.dtype.kind != kind or len(values) != count:
            raise ValueError(
                f"column {column_name!r} of table {name!r} has {len(values)} values of type {values.dtype}"
            )
        if kind == "f" and not np.isfinite(values).all():
            raise ValueError(f"column {column_name!r} of table {name!r} has values that are not finite")


def _check_references(tables: Mapping[str, Table], document: Mapping[str, Any]) -> None:
    target = document["target"]
    tiles = rows(tables["tiles"])
    if tiles != target["numTiles"]:
        raise ValueError(f"table 'tiles' has {tiles} rows for {target['numTiles']} tiles")
    for name, table in tables.items():
        if "ipu" in table:
            _check_range(table["ipu"], -1 if name == "programs" else 0, target["ipusPerReplica"], f"{name}: ipu")
    for (name, column_name), to in _REFERENCES.items():
        if name in tables:
            least = 0 if (name, column_name) in _NEVER_NONE else -1
            _check_range(tables[name][column_name], least, rows(tables[to]), f"{name}: {column_name}")
    programs = tables["programs"]
    if not (programs["parent"] < np.arange(rows(programs))).all() or (programs["parent"] < -1).any():
        raise ValueError("programs: a program comes before the one that holds it")
    if (programs["repeat"] < 1).any():
        raise ValueError("programs: a program is repeated less than once")
    unknown = set(programs["type"].tolist()) - {kind.value for kind in ProgramType}
    if unknown:
        raise ValueError(f"programs: unknown type {sorted(unknown)[0]!r}")
    for name, column_name in (("vertices", "total"), ("vertices", "state_bytes"), ("programs", "tiles")):
        _check_range(tables[name][column_name], 0, 2**40, f"{name}: {column_name}")
    if "spans" in tables:
        _check_range(tables["spans"]["run"], 0, len(document["execution"]["runs"]), "spans: run")


def _check_range(values: Column, least: int, end: int, what: str) -> None:
    if len(values) and not (least <= values.min() and values.max() < end):
        raise ValueError(f"{what} goes from {values.min()} to {values.max()}")


__all__ = ["MOST_BYTES", "MOST_DOCUMENT_BYTES", "check_document", "check_sizes", "check_tables", "column"]
