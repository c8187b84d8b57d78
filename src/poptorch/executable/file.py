"""The file that holds an executable: named sections of JSON, text, tensors or bytes, each with its hash.

    magic | version of this layout | length of the directory | its SHA-256 | directory (JSON) | sections

Reading one runs no code: a section is checked against its hash before it is used, and what it holds is data. A hash
says that nothing was lost, not that the content makes sense: a program that changes a file can compute hashes, too. So
sizes are checked against the file before anything is allocated, and whatever goes wrong with the content of a section
raises ``poptorch.Error`` with the names of file and section.

Writing is atomic: a reader sees the whole file or none of it, also when others write the same name at the same time. A
reader keeps one descriptor, so all sections come from the same file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

import poptorch_files
from poptorch.encoding import tensor_bytes, tensor_from_bytes, torch_constant
from poptorch.errors import Error, FileAccessError, FileFormatError, backend_error

MAGIC = b"poptorch executable\n"
LAYOUT = 1
_FIXED = struct.Struct("<IQ32s")
_LARGEST_READ = 1 << 30
"""The system reads at most 2 GiB at a time."""

Content = bytes | str | Mapping[str, Any] | Sequence[torch.Tensor]


def write(path: str | os.PathLike[str], sections: Mapping[str, Content], *, private: bool = False) -> None:
    """Write all sections; strings, dictionaries and lists of tensors are encoded.

    A file that is there already keeps its mode. A new one has the usual mode, or is the user's alone if ``private``.

    >>> import pathlib, tempfile
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
    parts = [MAGIC, fixed, listing, *encoded.values()]
    poptorch_files.replace(path, parts, 0o600 if private else 0o666)


_EXPORTED = "a file that save() or compileAndExport() of an executor has written"


class File:
    """The sections of one file, read and checked one by one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            # Without O_NONBLOCK, opening a pipe waits for its other end.
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or error
            raise backend_error(f"Cannot open {self.path}: {what}. Pass {_EXPORTED}", kind=FileAccessError) from error
        weakref.finalize(self, os.close, self._descriptor)
        self.status = os.fstat(self._descriptor)
        """Size, owner and mode, of the file that is read and no other."""

        if not stat.S_ISREG(self.status.st_mode):
            raise backend_error(
                f"Cannot open {self.path}: it is not a regular file. Pass {_EXPORTED}", kind=FileAccessError
            )
        self._sections, self._start = self._directory()

    def _directory(self) -> tuple[dict[str, dict[str, Any]], int]:
        """The sections by name, and where the first one starts."""
        if self._read(0, len(MAGIC)) != MAGIC:
            raise backend_error(
                f"Invalid file {self.path}: it does not contain Poptorch metadata. Pass {_EXPORTED}",
                kind=FileFormatError,
            )
        fixed = self._read(len(MAGIC), _FIXED.size)
        if len(fixed) != _FIXED.size:
            raise self.damaged("it ends within the header")
        layout, size, digest = _FIXED.unpack(fixed)
        if layout != LAYOUT:
            raise backend_error(
                f"Invalid file {self.path}: PopTorch version mismatch: its layout is number {layout}, and this "
                f"release reads {LAYOUT}. Export the model again.",
                kind=FileFormatError,
            )
        position = len(MAGIC) + _FIXED.size
        start = position + size
        listing = self._read(position, size) if start <= self.status.st_size else b""
        if len(listing) != size or hashlib.sha256(listing).digest() != digest:
            raise self.damaged("its list of sections is not the one that was written")
        with self.reading("list of sections"):
            sections, end = _checked(json.loads(listing))
        if self.status.st_size != start + end:
            raise self.damaged(f"it has {self.status.st_size} bytes instead of {start + end}")
        return sections, start

    def _read(self, position: int, size: int) -> bytes:
        """Bytes at a position; fewer if the file ends."""
        parts = []
        try:
            while size > 0 and (part := os.pread(self._descriptor, min(size, _LARGEST_READ), position)):
                parts.append(part)
                position, size = position + len(part), size - len(part)
        except OSError as error:
            raise backend_error(f"Cannot read {self.path}: {error.strerror or error}", kind=FileAccessError) from error
        return b"".join(parts)

    def damaged(self, what: str) -> Exception:
        """The error for a file that is not as it was written."""
        return backend_error(
            f"Invalid file {self.path}: it is damaged, {what}. It was cut off or changed after it was written: export "
            "the model again.",
            kind=FileFormatError,
        )

    @contextlib.contextmanager
    def reading(self, section: str) -> Iterator[None]:
        """Use the content of a section: whatever it makes the code raise, it is the file that is wrong."""
        try:
            yield
        except Error:
            raise
        except Exception as error:
            detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise backend_error(
                f"Invalid file {self.path}: section {section!r} makes no sense ({detail[:300]}). It was changed or "
                "made by another program: export the model again.",
                kind=FileFormatError,
            ) from error

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def names(self) -> list[str]:
        """All sections."""
        return list(self._sections)

    def bytes(self, name: str) -> bytes:
        """A section as it is."""
        if name not in self._sections:
            raise backend_error(f"Invalid file {self.path}: it has no section {name!r}", kind=FileFormatError)
        entry = self._sections[name]
        data = self._read(self._start + entry["offset"], entry["size"])
        if len(data) != entry["size"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise self.damaged(f"section {name!r} does not have the hash that was written")
        return data

    def text(self, name: str) -> str:
        """A section of text."""
        data = self.bytes(name)
        with self.reading(name):
            return data.decode()

    def json(self, name: str) -> Any:
        """A section of plain values."""
        data = self.bytes(name)
        with self.reading(name):
            return json.loads(data)

    def tensors(self, name: str) -> list[torch.Tensor]:
        """A section of tensors."""
        data = self.bytes(name)
        with self.reading(name):
            return tensors_of(data)


def _checked(listing: Any) -> tuple[dict[str, dict[str, Any]], int]:
    """The sections of a list in which each section starts where the one before it ends, and where the last one ends."""
    sections: dict[str, dict[str, Any]] = {}
    end = 0
    for entry in listing:
        name, offset, size = entry["name"], entry["offset"], entry["size"]
        if type(name) is not str or type(entry["sha256"]) is not str or type(size) is not int or size < 0:
            raise ValueError(f"a wrong entry {entry!r}")
        if offset != end or name in sections:
            raise ValueError(f"section {name!r} is not where the one before it ends, or there are two of that name")
        sections[name] = entry
        end += size
    return sections, end


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
    """The inverse of :func:`bytes_of`; ``ValueError`` for anything else."""
    (size,) = struct.unpack_from("<Q", data)
    position = 8 + size
    result = []
    for name, shape in json.loads(data[8:position]):
        dtype = torch_constant(name, torch.dtype)
        if not all(type(extent) is int and extent >= 0 for extent in shape):
            raise ValueError(f"a tensor of shape {shape}")
        length = dtype.itemsize * math.prod(shape)
        if length > len(data) - position:
            raise ValueError(f"a tensor of {length} bytes, and {len(data) - position} bytes are left")
        result.append(tensor_from_bytes(data[position : position + length], dtype, shape))
        position += length
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes that belong to no tensor")
    return result
