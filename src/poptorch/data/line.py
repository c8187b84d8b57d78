"""The line between the consumer and the background process: the two messages per item are a few bytes each."""

from __future__ import annotations

import pickle
import select
import struct
from multiprocessing.connection import Connection

from poptorch.data.messages import Filled, Release

_FILLED, _RELEASE, _PICKLED = b"f", b"r", b"p"
_FILLED_FORMAT = struct.Struct("<cQI")
_RELEASE_FORMAT = struct.Struct("<cI")


class Line:
    """One end of a connection.

    >>> from multiprocessing import Pipe
    >>> here, there = map(Line, Pipe())
    >>> here.send(Release(2))
    >>> there.pending(), there.receive()
    (True, Release(slot=2))
    >>> here.close(); there.close()
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._poller = select.poll()  # Connection.poll makes a new one for each look
        self._poller.register(connection.fileno(), select.POLLIN)

    def send(self, message: object) -> None:
        """Say something; ``OSError`` if nobody is there."""
        if type(message) is Filled and message.rows is None:
            data = _FILLED_FORMAT.pack(_FILLED, message.epoch, message.slot)
        elif type(message) is Release:
            data = _RELEASE_FORMAT.pack(_RELEASE, message.slot)
        else:
            data = _PICKLED + pickle.dumps(message)
        self.connection.send_bytes(data)

    def receive(self) -> object:
        """Wait for the next message; ``EOFError`` or ``OSError`` if nobody is there."""
        data = self.connection.recv_bytes()
        kind = data[:1]
        if kind == _FILLED:
            _, epoch, slot = _FILLED_FORMAT.unpack(data)
            return Filled(epoch, slot, None)
        if kind == _RELEASE:
            return Release(_RELEASE_FORMAT.unpack(data)[1])
        message: object = pickle.loads(memoryview(data)[1:])
        return message

    def pending(self) -> bool:
        """Whether ``receive`` would return, or fail, at once."""
        return bool(self._poller.poll(0))

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
