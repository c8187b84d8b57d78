"""Where replicas meet: operations that exchange values in the middle of a micro-batch.

The replicas of this process run on threads. A thread whose replica waits for others lets another thread take its place
(:func:`poptorch.runtime.workers.waiting`), so all of them get to the same operation however few cores there are. The
last one to arrive fetches the values of replicas in other processes, combines all, and wakes the others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from poptorch import replicas
from poptorch.errors import createPoptorchError
from poptorch.program.loop import Loop, MicroBatch
from poptorch.runtime.workers import waiting

Combine = Callable[[list[torch.Tensor]], torch.Tensor]

_LOOK_S = 0.2
"""How often those that wait look whether the call was stopped."""

_POSITIONS, _SLOTS, _SITES = 1 << 11, 1 << 7, 1 << 12
"""How much of a tag says which micro-batch, which pass of which part, and which call in the program."""


class Network(Protocol):
    """The processes that have other replicas of the same model, in the order of their replicas."""

    own: int
    """The place of this process."""

    def swap(self, values: torch.Tensor, rooms: Mapping[int, torch.Tensor], tag: int) -> None:
        """Send bytes to some processes, and receive theirs; messages with one tag keep their order."""

    def give_up(self, error: BaseException) -> None:
        """This process cannot go on in the middle of a call: the others hear why, and wait no longer."""


@dataclass
class _Room:
    """One exchange: who is there, and what came of it."""

    members: tuple[int, ...]
    local: tuple[int, ...]
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    results: dict[int, torch.Tensor] | None = None
    error: BaseException | None = None


_Key = tuple[int, int, int, int, tuple[int, ...]]
"""Micro-batch, slot, site, how many times the site came before in this task, members."""


class Meeting:
    """The exchanges of one engine."""

    def __init__(self, loop: Loop, network: Network | None = None) -> None:
        self._loop = loop
        self._network = network
        self._local = range(loop.first_replica, loop.first_replica + loop.replicas)
        self._changed = threading.Condition()
        self._rooms: dict[_Key, _Room] = {}
        self._gone: dict[tuple[int, int], set[int]] = {}
        """For each pass of a micro-batch, the replicas of this process that are done with it."""

        self._failure: BaseException | None = None

    def begin(self) -> None:
        """Before a call: nothing of an earlier one stays."""
        with self._changed:
            self._rooms.clear()
            self._gone.clear()
            self._failure = None

    @contextmanager
    def taking_part(self, micro_batch: MicroBatch, slot: int) -> Iterator[None]:
        """In here, this thread computes a pass of a micro-batch for its replica."""
        number = self._loop.global_replica(micro_batch.replica)
        present = _Present(self, number, self._loop.replicas_of_job, self._loop.position(micro_batch), slot)
        with replicas.inside(present):
            yield
        self._leave(present)

    def abandon(self, error: BaseException) -> None:
        """The call has failed: nobody waits any longer, here and in other processes."""
        with self._changed:
            first, self._failure = self._failure is None, self._failure or error
            self._changed.notify_all()
        if first and self._network is not None:
            self._network.give_up(error)

    def meet(
        self, own: _Present, value: torch.Tensor, members: Sequence[int], site: int, combine: Combine
    ) -> torch.Tensor:
        """Wait for all members; each gets a copy of what ``combine`` makes of their values."""
        key = (own.position, own.slot, site, own.times(site), tuple(members))
        with self._changed:
            room = self._rooms.get(key)
            if room is None:
                room = _Room(tuple(members), tuple(m for m in members if m in self._local))
                self._rooms[key] = room
            room.values[own.number] = value
            self._check_absent(key, room)
            last = len(room.values) == len(room.local)
        if last:
            self._settle(key, room, combine)
        else:
            self._await(room)
        with self._changed:
            if room.error is not None:
                raise room.error
            assert room.results is not None
            result = room.results.pop(own.number)
            if not room.results:
                self._rooms.pop(key, None)
        return result

    def _settle(self, key: _Key, room: _Room, combine: Combine) -> None:
        """All of this process are here: combine their values with those of others."""
        try:
            combined = combine(self._all_values(key, room))
            results = {member: combined.clone(memory_format=torch.contiguous_format) for member in room.local}
        except BaseException as error:
            with self._changed:
                room.error = error
                self._changed.notify_all()
            raise
        with self._changed:
            room.results, room.values = results, {}
            self._changed.notify_all()

    def _await(self, room: _Room) -> None:
        with waiting() as stopped, self._changed:
            while room.results is None and room.error is None:
                if self._failure is not None or stopped():
                    raise createPoptorchError(
                        "Another replica has failed, and this one cannot go on without its value."
                    ) from self._failure
                self._changed.wait(_LOOK_S)

    def _all_values(self, key: _Key, room: _Room) -> list[torch.Tensor]:
        """The values of all members, in their order."""
        values = dict(room.values)
        others = [member for member in room.members if member not in self._local]
        if others:
            assert self._network is not None
            by_process: dict[int, list[int]] = {}
            for member in others:
                by_process.setdefault(member // self._loop.replicas, []).append(member)
            example = values[room.local[0]]
            sent = torch.stack([values[member].contiguous() for member in room.local])
            received = {
                process: torch.empty((len(theirs), *example.shape), dtype=example.dtype)
                for process, theirs in by_process.items()
            }
            with waiting():
                self._network.swap(sent, received, _tag(key))
            for process, theirs in by_process.items():
                values.update(zip(theirs, received[process], strict=True))
        return [values[member] for member in room.members]

    def _leave(self, present: _Present) -> None:
        place = present.position, present.slot
        with self._changed:
            gone = self._gone.setdefault(place, set())
            gone.add(present.number)
            for key, room in self._rooms.items():
                if key[:2] == place:
                    self._check_absent(key, room)
            if len(gone) == len(self._local):
                del self._gone[place]

    def _check_absent(self, key: _Key, room: _Room) -> None:
        """Who has finished the pass will not come any more."""
        absent = self._gone.get(key[:2], set()).intersection(room.local).difference(room.values)
        if absent and room.results is None:
            room.error = createPoptorchError(
                f"Replica {min(absent)} did not take part in an exchange between replicas that replica "
                f"{min(room.values)} waits for. All replicas of a group must make the same exchanges: they cannot "
                "stand in branches that differ between replicas."
            )
            self._changed.notify_all()


class _Present:
    """A replica in one pass of one micro-batch."""

    def __init__(self, meeting: Meeting, number: int, count: int, position: int, slot: int) -> None:
        self.number, self.count = number, count
        self.position, self.slot = position, slot
        self._meeting = meeting
        self._times: Counter[int] = Counter()

    def times(self, site: int) -> int:
        """How many times this pass came to a site before."""
        self._times[site] += 1
        return self._times[site] - 1

    def exchange(self, value: torch.Tensor, members: Sequence[int], site: int, combine: Combine) -> torch.Tensor:
        """What ``combine`` makes of the values of all members."""
        return self._meeting.meet(self, value, members, site, combine)


def _tag(key: _Key) -> int:
    """A number for the messages of an exchange. Those of one place in the program keep their order."""
    position, slot, site = key[:3]
    if slot >= _SLOTS or site >= _SITES:
        raise createPoptorchError(
            f"Between processes, models of up to {_SLOTS} passes with {_SITES // 2} exchanges between replicas are "
            "possible."
        )
    return (position % _POSITIONS * _SLOTS + slot) * _SITES + site
