"""Weight overlay: one copy of the weights in memory while the device trains and the host's are not looked at.

The host's weights are out of date as soon as the device has trained, yet they may be asked for: ``copyWeightsToDevice``
goes back to them. So they are written to a file, and the device's weights are laid over their memory. A look at the
host's weights brings the trained ones first, as always; only then are there two copies in memory again.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import IO, Protocol

import torch

from poptorch import environment
from poptorch._logging import logger
from poptorch.errors import backend_error

_SMALLEST = 1 << 14
"""Tensors below this stay as they are."""

WORTHWHILE = 1 << 18
"""An overlay of less than this in all is not made."""

_FIRST_LIMIT = 3
"""After how many training calls in a row without a look at the host's weights the overlay begins."""

_ALIGNMENT = 64  # what kernels may count on in memory that torch allocated


class Exclusively(Protocol):
    """Calls a function while the compiled program does not run."""

    def __call__(self, function: Callable[[], None], /) -> None:
        """Wait for the end of the program's call, then call the function."""


class _Overlaid:
    """Host tensors whose memory the device uses, and the file with their values.

    Whatever interrupts :meth:`begin` or :meth:`end`, a later :meth:`end` does the rest.
    """

    def __init__(self, file: IO[bytes], exclusively: Exclusively) -> None:
        self._file = file
        self._pairs: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        """The host's tensor, the device's, and where in the file the values are."""

        self.exclusively = exclusively

    def begin(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Let each second tensor live in the memory of the first, whose values are in the file."""
        place = 0
        for host, device in pairs:
            self._pairs.append((host, device, place))
            _overlaid[host.data_ptr()] = self
            ctypes.memmove(host.data_ptr(), device.data_ptr(), host.nbytes)
            device.set_(host.untyped_storage(), 0, device.shape, device.stride())
            place += host.nbytes

    def end(self, *, keep: bool) -> None:
        """Give the device memory of its own; the host's tensors keep the device's values, or get their own back."""
        while self._pairs:
            host, device, place = self._pairs[-1]
            own = torch.UntypedStorage(device.nbytes)
            # Not clone(): in a forked process, a copy by several threads would wait for ever for those of its parent.
            ctypes.memmove(own.data_ptr(), device.data_ptr(), device.nbytes)
            device.set_(own, 0, device.shape, device.stride())
            if not keep:
                _read(self._file, place, host)
            _overlaid.pop(host.data_ptr(), None)
            self._pairs.pop()
        self._file.close()


_overlaid: weakref.WeakValueDictionary[int, _Overlaid] = weakref.WeakValueDictionary()
"""What a piece of host memory is part of, by address."""

_lock = threading.RLock()


def is_overlaid(tensor: torch.Tensor) -> bool:
    """Whether the device's weights lie in the memory of this host tensor.

    >>> is_overlaid(torch.zeros(2))
    False
    """
    return tensor.data_ptr() in _overlaid


def end_overlays(tensors: Iterable[torch.Tensor]) -> None:
    """Before the memory of host tensors is read or written directly: give them their own values back."""
    with _lock:
        found = {id(it): it for t in tensors if (it := _overlaid.get(t.data_ptr())) is not None} if _overlaid else {}
    for overlaid in found.values():
        overlaid.exclusively(partial(overlaid.end, keep=False))


class CallsWithoutLook:
    """Counts training calls up to a limit, which doubles each time that a look at the weights came after it.

    >>> calls = CallsWithoutLook(limit=2)
    >>> calls.called(), calls.called()
    (False, True)
    >>> calls.looked()
    >>> [calls.called() for _ in range(4)]
    [False, False, False, True]
    """

    def __init__(self, limit: int = _FIRST_LIMIT) -> None:
        self._limit = limit
        self._seen = 0

    def called(self) -> bool:
        """Count a training call; whether it is the one that reaches the limit."""
        self._seen += 1
        return self._seen == self._limit

    def looked(self) -> None:
        """The host's weights were looked at."""
        if self._seen >= self._limit:
            self._limit *= 2
        self._seen = 0


class WeightOverlay:
    """Begins and ends the overlays of one compiled program."""

    def __init__(self, possible: bool, exclusively: Exclusively = lambda function: function()) -> None:
        """``exclusively`` is how others wait for their turn before they end an overlay."""
        self._exclusively = exclusively
        self._calls = CallsWithoutLook()
        self._possible = possible and environment.SPILL_WEIGHTS.read()
        self._overlaid: _Overlaid | None = None

    def called(self) -> bool:
        """Count a training call; whether to :meth:`begin` before it runs."""
        return self._possible and self._calls.called()

    def begin(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take the memory of host tensors for the device's tensors beside them."""
        if self._overlaid is not None:
            return
        suited = [pair for pair in pairs if _is_suited(*pair)]
        self._possible = sum(host.nbytes for host, _ in suited) >= WORTHWHILE
        if not self._possible:
            return
        try:
            file = _file_with(host for host, _ in suited)
        except OSError as error:
            logger.debug("Host weights stay in memory: %s", error)
            self._possible = False
            return
        with _lock:
            self._overlaid = _Overlaid(file, self._exclusively)
            self._overlaid.begin(suited)

    def end(self, *, keep: bool) -> None:
        """The host's weights are in use again: with the device's values (``keep``), or with those they had."""
        with _lock:
            self._calls.looked()
            if self._overlaid is not None:
                self._overlaid.end(keep=keep)
            self._overlaid = None


def _is_suited(host: torch.Tensor, device: torch.Tensor) -> bool:
    """Plain memory that belongs to this tensor alone, so that every look at it is noticed."""
    if host.nbytes < _SMALLEST or host.dtype is not device.dtype or host.shape != device.shape:
        return False
    if host.layout is not torch.strided or not (host.is_contiguous() and device.is_contiguous()):
        return False
    storage = host.untyped_storage()
    whole = storage.nbytes() == host.nbytes and host.data_ptr() % _ALIGNMENT == 0
    # One owner is the tensor and the other the storage object in our hands; a graph that saved the tensor counts too.
    unshared = torch._C._storage_Use_Count(storage._cdata) == 2 and host._use_count() == 1  # type: ignore[attr-defined]
    return host.device.type == "cpu" and whole and unshared and not storage.is_shared() and not is_overlaid(host)


def _file_with(tensors: Iterable[torch.Tensor]) -> IO[bytes]:
    file = tempfile.TemporaryFile(buffering=0, prefix="poptorch-weights-")  # noqa: SIM115  lives as long as the overlay
    try:
        for tensor in tensors:
            rest = _bytes_of(tensor)
            while rest:
                rest = rest[file.write(rest) :]
    except OSError:
        file.close()
        raise
    return file


def _read(file: IO[bytes], place: int, tensor: torch.Tensor) -> None:
    """Read values from a place in the file, which a process that was forked meanwhile may do at the same time."""
    rest = _bytes_of(tensor)
    while rest:
        count = os.preadv(file.fileno(), [rest], place)
        if not count:
            raise backend_error("The temporary file with the host's weights ended early: they cannot be restored")
        rest, place = rest[count:], place + count


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's memory as bytes; the tensor must outlive it."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
