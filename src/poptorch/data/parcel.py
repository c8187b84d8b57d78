"""Handing a data set to another process: pickled into an anonymous file whose descriptor travels along.

Large tensors and arrays are laid out next to the pickle and mapped by the receiver, privately and without
a copy, so a data set costs its size once however many processes open it.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
from collections.abc import Callable
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import torch

from poptorch.data.ring import aligned, anonymous_file

_COUNT = struct.Struct("<Q")


class Parcel:
    """An object that is packed when a process is being started with it, and unpacked in that process.

    Packing waits for that moment because locks, queues and shared tensors in a data set can only be passed
    on while a process is starting.
    """

    def __init__(self, content: Any, *, on_disk: bool) -> None:
        self._content = content
        self._on_disk = on_disk

    def __reduce__(self) -> tuple[Callable[..., PackedParcel], tuple[Any]]:
        descriptor = pack(self._content, on_disk=self._on_disk)
        self._descriptor = descriptor  # stays open until the process has been started: see close()
        return PackedParcel, (DupFd(descriptor),)

    def close(self) -> None:
        """Give the sender's descriptor back; the receiver has its own."""
        descriptor = self.__dict__.pop("_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)

    def unpack(self) -> Any:
        """The object itself, for a process that inherited it."""
        return self._content


class PackedParcel:
    """The receiving end of a :class:`Parcel`."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor

    def unpack(self) -> Any:
        """Read the object back; can be done once."""
        descriptor = self._descriptor.detach()
        try:
            return unpack(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Nothing to give back on this side."""


def pack(content: Any, *, on_disk: bool = False) -> int:
    """Pickle ``content`` into an anonymous file: the sizes of its parts, then the pickle, then the buffers.

    >>> descriptor = pack([torch.arange(3), "text"])
    >>> unpack(descriptor)
    [tensor([0, 1, 2]), 'text']
    >>> os.close(descriptor)
    """
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _DataPickler(stream, buffers.append).dump(content)
    parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
    sizes = [part.nbytes for part in parts]
    header = _COUNT.pack(len(parts)) + b"".join(_COUNT.pack(size) for size in sizes)
    descriptor = anonymous_file(aligned(len(header)) + sum(map(aligned, sizes)), on_disk=on_disk)
    with os.fdopen(os.dup(descriptor), "wb", buffering=0) as file:
        offset = 0
        for part in [memoryview(header), *parts]:
            file.seek(offset)
            _write_all(file, part)
            offset += aligned(part.nbytes)
    return descriptor


def unpack(descriptor: int) -> Any:
    """Read what :func:`pack` wrote. Writing to its tensors changes this process's copy only."""
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    view = memoryview(memory)
    (count,) = _COUNT.unpack_from(view)
    sizes = [_COUNT.unpack_from(view, _COUNT.size * (1 + index))[0] for index in range(count)]
    offset, parts = aligned(_COUNT.size * (1 + count)), []
    for size in sizes:
        parts.append(view[offset : offset + size])
        offset += aligned(size)
    return pickle.loads(parts[0], buffers=parts[1:])


def _write_all(file: io.RawIOBase | io.FileIO, part: memoryview) -> None:
    while part.nbytes:  # one write() moves at most 2 GiB
        part = part[file.write(part) or 0 :]


class _DataPickler(ForkingPickler):
    """Passes private CPU tensors by value, each storage once however many views of it there are.

    torch's own reduction would move every tensor into a shared segment with a descriptor of its own, and a
    process can only be started with a few hundred descriptors. Tensors that are shared already go that way.
    """

    def __init__(self, stream: io.BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], object]) -> None:
        super().__init__(stream, 5, True, buffer_callback)  # positional: ForkingPickler takes no keywords
        self._storages: dict[int, _StorageBytes] = {}

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or not _is_plain(obj):
            return NotImplemented
        storage = obj.untyped_storage()
        # The entry keeps the storage alive, so its address cannot be used again while we pickle.
        content = self._storages.setdefault(storage.data_ptr(), _StorageBytes(storage))
        place = (obj.storage_offset(), tuple(obj.shape), tuple(obj.stride()))
        return _rebuild_tensor, (content, obj.dtype, place, obj.requires_grad)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_leaf
        and not tensor.is_shared()
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.untyped_storage().nbytes() > 0
    )


class _StorageBytes:
    """The bytes of one storage; pickled once per parcel, since pickle remembers the object."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._raw = torch.empty(0, dtype=torch.uint8).set_(storage)

    def __reduce__(self) -> tuple[Callable[..., torch.Tensor], tuple[pickle.PickleBuffer]]:
        memory: Any = self._raw.numpy()
        return _bytes_as_tensor, (pickle.PickleBuffer(memory),)


def _bytes_as_tensor(raw: Any) -> torch.Tensor:
    return torch.frombuffer(raw, dtype=torch.uint8)


def _rebuild_tensor(
    raw: torch.Tensor,
    dtype: torch.dtype,
    place: tuple[int, tuple[int, ...], tuple[int, ...]],
    requires_grad: bool,
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), *place)
    return tensor.requires_grad_(requires_grad)
