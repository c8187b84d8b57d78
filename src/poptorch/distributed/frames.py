"""Requests and answers of a meeting point as bytes: a length, and a list of plain values.

>>> data = pack([1, "set", "key", b"value"])
>>> unpack(bytearray(data + b"more"))
([1, 'set', 'key', b'value'], 36)
>>> unpack(bytearray(data[:-1])) is None
True
"""

from __future__ import annotations

import json
import struct
from typing import Any

LONGEST = 1 << 24
"""In bytes: what is longer is no request."""

_LENGTH = struct.Struct("!I")
_BYTES = "b:"
_TEXT = "t:"


def pack(values: list[Any]) -> bytes:
    """Numbers, texts, bytes, truth values, nothing, and lists of these."""
    data = json.dumps([_marked(value) for value in values]).encode()
    return _LENGTH.pack(len(data)) + data


def unpack(buffer: bytearray) -> tuple[list[Any], int] | None:
    """The first values in a buffer and how many bytes they take; ``None`` while they are not complete."""
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    if length > LONGEST:
        raise ValueError(f"{length} bytes are no request")
    end = _LENGTH.size + length
    if len(buffer) < end:
        return None
    found = json.loads(bytes(buffer[_LENGTH.size : end]))
    if not isinstance(found, list):
        raise ValueError("not a list")
    return [_plain(value) for value in found], end


def _marked(value: Any) -> Any:
    if isinstance(value, list):
        return [_marked(one) for one in value]
    if isinstance(value, bytes):
        return _BYTES + value.decode("latin-1")
    return _TEXT + value if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, str):
        return value
    return value[2:].encode("latin-1") if value.startswith(_BYTES) else value[2:]
