"""The file that holds an executable: named sections of JSON, text, tensors or bytes, each with its hash.

    magic | version of this layout | length of the directory | its SHA-256 | directory (JSON) | sections

Reading one runs no code: a section is checked against its hash before it is used, and what it holds is data. A
file that was cut off, changed or made by another program raises ``poptorch.Error``. Writing is atomic: a reader sees
the whole file or none of it, also when others write the same name at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from poptorch.encoding import tensor_bytes, tensor_from_bytes
from poptorch.errors import backend_error

MAGIC = b"poptorch executable\n"
LAYOUT = 1
_FIXED = struct.Struct("<IQ32s")
_LARGEST_DIRECTORY = 1 << 26

Content = bytes | str | Mapping[str, Any] | Sequence[torch.Tensor]


def write(path: str | os.PathLike[str], sections: Mapping[str, Content]) -> None:
    """Write all sections; strings, dictionaries and lists of tensors are encoded.

    >>> import pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.poptorch"
    >>> write(path, {"about": {"answer": 42}, "weights": [torch.ones(2)]})
    >>> File(path).json("about"), File(path).tensors("weights")
    ({'answer': 42}, [tensor([1., 1.])])
    """
    encoded = {name: _encoded(content) for name, content in sections.items()}
    directory, offset = [], 0
    for name, data in encoded.items():
        entry = {"name": name, "offset": offset, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        directory.append(entry)
        offset += len(data)
    listing = json.dumps(directory).encode()
    fixed = _FIXED.pack(LAYOUT, len(listing), hashlib.sha256(listing).digest())
    with _atomic(Path(path)) as file:
        for part in (MAGIC, fixed, listing, *encoded.values()):
            file.write(part)


@contextlib.contextmanager
def _atomic(path: Path) -> Any:
    """A file that takes its name when it is complete."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # temporary files are private, this one is not
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


class File:
    """The sections of one file, read and checked one by one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            with open(self.path, "rb") as file:
                self._sections, self._start = self._directory(file)
                end = file.seek(0, os.SEEK_END)
        except OSError as error:
            raise backend_error(f"Cannot open {self.path}: {error.strerror or error}") from error
        expected = self._start + sum(entry["size"] for entry in self._sections.values())
        if end != expected:
            raise self.damaged(f"it has {end} bytes instead of {expected}")

    def _directory(self, file: BinaryIO) -> tuple[dict[str, dict[str, Any]], int]:
        if file.read(len(MAGIC)) != MAGIC:
            raise backend_error(f"Invalid file {self.path}: it does not contain Poptorch metadata")
        fixed = file.read(_FIXED.size)
        if len(fixed) != _FIXED.size:
            raise self.damaged("it ends within the header")
        layout, size, digest = _FIXED.unpack(fixed)
        if layout != LAYOUT:
            raise backend_error(
                f"Invalid file {self.path}: PopTorch version mismatch: its layout is number {layout}, and this "
                f"release reads {LAYOUT}. Export the model again."
            )
        listing = file.read(size) if size <= _LARGEST_DIRECTORY else b""
        if len(listing) != size or hashlib.sha256(listing).digest() != digest:
            raise self.damaged("its list of sections is not the one that was written")
        return {entry["name"]: entry for entry in json.loads(listing)}, file.tell()

    def damaged(self, what: str) -> Exception:
        """The error for a file that is not as it was written."""
        return backend_error(
            f"Invalid file {self.path}: it is damaged, {what}. It was cut off or changed after it was written: export "
            "the model again."
        )

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def names(self) -> list[str]:
        """All sections."""
        return list(self._sections)

    def bytes(self, name: str) -> bytes:
        """A section as it is."""
        if name not in self._sections:
            raise backend_error(f"Invalid file {self.path}: it has no section {name!r}")
        entry = self._sections[name]
        try:
            with open(self.path, "rb") as file:
                file.seek(self._start + entry["offset"])
                data = file.read(entry["size"])
        except OSError as error:
            raise backend_error(f"Cannot read {self.path}: {error.strerror or error}") from error
        if len(data) != entry["size"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise self.damaged(f"section {name!r} does not have the hash that was written")
        return data

    def text(self, name: str) -> str:
        """A section of text."""
        return self.bytes(name).decode()

    def json(self, name: str) -> Any:
        """A section of plain values."""
        return json.loads(self.bytes(name))

    def tensors(self, name: str) -> list[torch.Tensor]:
        """A section of tensors."""
        return tensors_of(self.bytes(name))


def _encoded(content: Content) -> bytes:
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, Mapping):
        return json.dumps(content).encode()
    return bytes_of(content)


def bytes_of(tensors: Sequence[torch.Tensor]) -> bytes:
    """Tensors as bytes: types and shapes in JSON, then the elements of each in memory order."""
    listing = json.dumps([[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]).encode()
    return b"".join([struct.pack("<Q", len(listing)), listing, *map(tensor_bytes, tensors)])


def tensors_of(data: bytes) -> list[torch.Tensor]:
    """The inverse of :func:`bytes_of`."""
    (size,) = struct.unpack_from("<Q", data)
    position = 8 + size
    result = []
    for name, shape in json.loads(data[8:position]):
        dtype = getattr(torch, name)
        length = dtype.itemsize * torch.Size(shape).numel()
        result.append(tensor_from_bytes(data[position : position + length], dtype, shape))
        position += length
    return result
