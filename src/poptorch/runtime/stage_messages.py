"""Sending and receiving the messages of one round, on threads of their own: workers never wait for a network."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from poptorch.compiler.passes.stages import Edge
from poptorch.runtime.crossings import Crossings
from poptorch.runtime.links import LinkTransfer, ReplicaLink
from poptorch.runtime.tasks import Task

_AHEAD = 4
"""For how many tasks of a stage there is room to receive before their turn."""

Deliver = Callable[[Task, "Sequence[tuple[int, torch.Tensor]]"], None]
"""Takes the values of a task of another process, each with the number of its edge."""


class Mail:
    """The messages of one round. :meth:`open` begins to receive, :meth:`close` waits until all is sent."""

    def __init__(self, link: ReplicaLink, crossings: Crossings, edges: Sequence[Edge], deliver: Deliver) -> None:
        self._link = link
        self._crossings = crossings
        self._edges = edges
        self._deliver = deliver
        self._threads: list[threading.Thread] = []
        self._boxes: dict[int, queue.SimpleQueue[tuple[LinkTransfer, torch.Tensor] | None]] = {}
        self._arrived: Callable[[int], None] = lambda index: None
        self._failed: Callable[[BaseException], None] = lambda error: None
        self._error: BaseException | None = None

    def open(self, arrived: Callable[[int], None], failed: Callable[[BaseException], None]) -> None:
        """Receive from now on; ``arrived`` hears the index of each task that is over, ``failed`` what goes wrong."""
        self._arrived, self._failed = arrived, failed
        for destination in {m.block for messages in self._crossings.sent.values() for m in messages}:
            self._boxes[destination] = queue.SimpleQueue()
            self._start(self._see_off, self._boxes[destination])
        for channel in self._crossings.channels():
            self._start(self._receive, channel)

    def post(self, task: Task, values: dict[int, torch.Tensor]) -> None:
        """Send what a task has for other processes; ``values`` are by edge."""
        for message in self._crossings.sent.get(task.index, ()):
            packed = _EMPTY if message.edge is None else packed_as(self._edges[message.edge], values[message.edge])
            transfer = self._link.send(packed, message.block, message.tag)
            self._boxes[message.block].put((transfer, packed))

    def close(self) -> None:
        """After the last task: wait until everything is sent."""
        for box in self._boxes.values():
            box.put(None)
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def abandon(self, error: BaseException) -> None:
        """The round has failed: no message is waited for any longer, here and in other processes."""
        self._link.give_up(error)
        for box in self._boxes.values():
            box.put(None)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=partial(self._guarded, work, *arguments), name="poptorch-mail", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001  (handed to the caller)
            self._error = self._error or error
            self._failed(error)

    def _see_off(self, box: queue.SimpleQueue[tuple[LinkTransfer, torch.Tensor] | None]) -> None:
        """Keep what is being sent until it has arrived."""
        while (posted := box.get()) is not None:
            posted[0].wait()

    def _receive(self, channel: Sequence[int]) -> None:
        expected = iter(channel)
        posted: deque[tuple[int, list[LinkTransfer], list[tuple[int, torch.Tensor]]]] = deque()

        def prepare() -> None:
            index = next(expected, None)
            if index is not None:
                posted.append((index, *self._prepare(index)))

        for _ in range(_AHEAD):
            prepare()
        while posted:
            index, transfers, values = posted.popleft()
            for transfer in transfers:
                transfer.wait()
            prepare()
            self._deliver(self._crossings.graph.tasks[index], values)
            self._arrived(index)

    def _prepare(self, index: int) -> tuple[list[LinkTransfer], list[tuple[int, torch.Tensor]]]:
        """Room for the messages of one task."""
        transfers, values = [], []
        for message in self._crossings.awaited[index]:
            if message.edge is None:
                room = torch.empty(1, dtype=torch.uint8)
            else:
                value = room_for(self._edges[message.edge])
                values.append((message.edge, value))
                room = flat(value)
            transfers.append(self._link.receive(room, message.block, message.tag))
        return transfers, values


_EMPTY = torch.zeros(1, dtype=torch.uint8)


def room_for(edge: Edge) -> torch.Tensor:
    """Memory for a value, as it lies where it was computed.

    >>> room_for(Edge("x", 0, (1,), (2, 3), torch.float32, (1, 2))).stride()
    (1, 2)
    """
    if _is_dense(edge.shape, edge.strides):
        return torch.empty_strided(edge.shape, edge.strides, dtype=edge.dtype)
    return torch.empty(edge.shape, dtype=edge.dtype)


def packed_as(edge: Edge, value: torch.Tensor) -> torch.Tensor:
    """The elements of a value in the order in which :func:`room_for` has them."""
    wanted = edge.strides if _is_dense(edge.shape, edge.strides) else _in_rows(edge.shape)
    if value.stride() == wanted:
        return flat(value)
    return flat(torch.empty_strided(edge.shape, wanted, dtype=edge.dtype).copy_(value))


def flat(value: torch.Tensor) -> torch.Tensor:
    """The memory of a value without gaps; at least one byte, because messages have something in them."""
    if not value.numel():
        return torch.zeros(1, dtype=torch.uint8)
    return value.as_strided((value.numel(),), (1,))


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the strides leave no gaps and let no two elements share memory."""
    if len(shape) != len(strides) or 0 in shape:
        return False
    expected = 1
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda pair: (pair[1], pair[0])):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _in_rows(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
