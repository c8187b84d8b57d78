"""The processes of a job as one group, with the collective operations that the package needs, on gloo.

The group is our own, beside whatever group the program makes with ``torch.distributed.init_process_group``: the two do
not disturb each other. It is made when it is first needed and lives until :func:`shutdown` or the end of the process.

Operations wait in slices of a second. In between they look whether a process has died. So a lost process becomes a
:class:`poptorch.RecoverableError` on all others, and never a hang. After such an error the group cannot be used again.

>>> current() is None
True
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from poptorch import environment, launchers
from poptorch._logging import logger
from poptorch.distributed import addresses, descriptors, proof, rendezvous
from poptorch.distributed.keys import MembersKeys
from poptorch.distributed.peers import Peer, Peers
from poptorch.distributed.rendezvous import JobMeeting
from poptorch.errors import RecoverableError, createPoptorchError
from poptorch_files import parse_json

_SLICE = timedelta(seconds=1)
_HANG_UP = (1 << 31) - 1
"""The tag of a message that never comes."""

_CHALLENGE, _ANSWER = _HANG_UP - 1, _HANG_UP - 2
"""The tags of the first messages between two processes."""


class Pending:
    """An operation under way."""

    def __init__(self, group: ProcessGroup, work: Any) -> None:
        self._group = group
        self._work = work

    def advance(self) -> None:
        """Nothing: it goes on by itself."""

    def wait(self) -> None:
        """Wait for its end; raises :class:`poptorch.RecoverableError` if a process is lost."""
        self._group.finish(self._work)


class PointToPoint:
    """A message under way between two processes."""

    def __init__(self, group: ProcessGroup, work: Any, seconds: float) -> None:
        self._group = group
        self._work = work
        self._limit = timedelta(seconds=seconds)

    def wait(self) -> None:
        """Wait for its end, in one piece: a wait for a message that ends early closes the connection.

        The end of a process at the other end closes it too.
        """
        try:
            self._work.wait(self._limit)
        except RuntimeError as error:
            raise self._group.end(error) from error


class ProcessGroup:
    """The processes that take part in collective operations. All must make the same ones in the same order."""

    def __init__(
        self, meeting: JobMeeting, peers: Peers, members: Sequence[int], own: int, seconds: float, name: str
    ) -> None:
        self._meeting = meeting
        self._peers = peers
        self._seconds = seconds
        self.name = name
        """What no other group of the job is called."""

        self.members = tuple(members)
        """The numbers of its processes."""

        self.process_id = own
        """The number of this process."""

        self.failed: RecoverableError | None = None
        """What ended the group."""

        self._ending = threading.Lock()

        self._gloo: Any = None
        # One process alone needs no meeting place: the process that serves it may have ended.
        keys: Store = HashStore()
        if len(self.members) > 1:
            descriptors.reserve(len(self.members), f"a group of {len(self.members)} processes")
            keys = MembersKeys(meeting.keys.within(f"group/{name}", seconds), len(self.members))
        self._gloo = self._connected(keys)
        peers.is_connected(name)

    @property
    def size(self) -> int:
        """How many processes take part."""
        return len(self.members)

    @property
    def index(self) -> int:
        """The place of this process among the members."""
        return self.members.index(self.process_id)

    @property
    def pids(self) -> list[int] | None:
        """The process numbers of the members; ``None`` where some are on other hosts, or in another container."""
        peers = [self._peers.all[member] for member in self.members]
        return [peer.pid for peer in peers] if all(peer.is_on_this_host for peer in peers) else None

    def part(self, members: Sequence[int], purpose: str = "") -> ProcessGroup:
        """A group of some of the members, this process among them; ``purpose`` tells it from others of the same."""
        name = f"{self.name.partition('/')[0]}/{'-'.join(map(str, members))}/{purpose}"
        return ProcessGroup(self._meeting, self._peers, members, self.process_id, self._seconds, name)

    # -- operations ----------------------------------------------------------------------------------------------

    def start_sum(self, tensor: torch.Tensor) -> Pending:
        """Begin to replace a tensor by its sum over all members; the result has the same bits on each."""
        return self._start("allreduce", [tensor], _options(dist.AllreduceOptions(), reduceOp=dist.ReduceOp.SUM))

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a tensor by its sum over all members."""
        self.start_sum(tensor).wait()
        return tensor

    def reduce(self, tensor: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
        """Replace a tensor by its sum, least or greatest value, ... over all members."""
        self._start("allreduce", [tensor], _options(dist.AllreduceOptions(), reduceOp=operation)).wait()
        return tensor

    def start_broadcast(self, tensor: torch.Tensor, root: int) -> Pending:
        """Begin to replace a tensor by that of process ``root``."""
        return self._start(
            "broadcast", [tensor], _options(dist.BroadcastOptions(), rootRank=self.members.index(root), rootTensor=0)
        )

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Replace a tensor by that of process ``root``."""
        self.start_broadcast(tensor, root).wait()
        return tensor

    def send(self, values: torch.Tensor, process: int, tag: int) -> PointToPoint:
        """Begin to send contiguous values to one process. Any thread may do so."""
        return self._message("send", values, process, tag)

    def receive(self, room: torch.Tensor, process: int, tag: int) -> PointToPoint:
        """Begin to receive contiguous values that a process sends with this tag. Any thread may do so."""
        return self._message("recv", room, process, tag)

    def _message(self, operation: str, tensor: torch.Tensor, process: int, tag: int) -> PointToPoint:
        started = self._call(operation, [tensor], self.members.index(process), tag)
        return PointToPoint(self, started, self._seconds)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all members, which have one shape, in their order."""
        found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in self.members]
        self._start("allgather", [found], [tensor.contiguous()]).wait()
        return found

    def start_scatter_sum(self, parts: torch.Tensor, own: torch.Tensor) -> Pending:
        """Begin to write the sum of one part of a tensor over all members to ``own``; members own equal parts."""
        return self._start("_reduce_scatter_base", own, parts, dist.ReduceScatterOptions())

    def start_gather_parts(self, own: torch.Tensor, parts: torch.Tensor) -> Pending:
        """Begin to write the parts of all members, side by side, to ``parts``."""
        return self._start("_allgather_base", parts, own)

    def gather_values(self, value: Any) -> list[Any]:
        """Plain values (numbers, texts, lists, dictionaries) of all members, in their order."""
        data = json.dumps(value).encode()
        lengths = [int(n) for n in torch.cat(self.gather(torch.tensor([len(data)])))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        if data:
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        texts = self.gather(padded)
        return [self._value_of(m, t[:n]) for m, t, n in zip(self.members, texts, lengths, strict=True)]

    @staticmethod
    def _value_of(member: int, text: torch.Tensor) -> Any:
        try:
            return parse_json(bytes(text.tolist()))
        except ValueError as error:
            raise createPoptorchError(f"Process {member} sent values that make no sense: {error}.") from None

    def start_meeting(self) -> Pending:
        """Say that this process is here. The wait for the result ends when all members are."""
        return self.start_sum(torch.zeros(1))

    def barrier(self) -> None:
        """Wait until all members are here."""
        self.start_meeting().wait()

    def _connected(self, keys: Store) -> Any:
        """Connections to all other members, which belong to the job. Meanwhile this process looks after the others."""
        address = addresses.reachable(self._peers.all[self.process_id], self._peers.all)
        options = addresses.gloo_options(address, self._seconds)
        made: Future[Any] = Future()
        deadline = time.monotonic() + self._seconds + _SLICE.total_seconds()

        def connect() -> Any:
            gloo = dist.ProcessGroupGloo(keys, self.index, self.size, options)
            self._introduce(gloo)
            return gloo

        # Not an executor's thread: a process that gives up must not wait for this one at its end.
        threading.Thread(target=_settle, args=(made, connect), name="poptorch-connect", daemon=True).start()
        problem = f"process {self.process_id}, at {address}, cannot connect to all others"
        while True:
            try:
                return made.result(_SLICE.total_seconds())
            except FutureTimeout as error:
                lost = self._peers.missing()
                if lost is not None:
                    raise self.end(lost) from None
                if time.monotonic() > deadline:
                    late = f"{problem} within {self._seconds:g} s. {addresses.ADVICE}"
                    raise self.end(self._peers.failure(error, late)) from None
            except proof.NotProven as error:
                raise self.end(self._peers.failure(error, str(error))) from error
            except RuntimeError as error:
                raise self.end(self._peers.failure(error, f"{problem}: {error}. {addresses.ADVICE}")) from error

    def _introduce(self, gloo: Any) -> None:
        """Have all others prove that they belong to the job, and do so. All are connected when it is done.

        Gloo believes whoever connects to it.
        """
        secret, limit = self._meeting.secret, timedelta(seconds=self._seconds)
        others = [member for member in range(self.size) if member != self.index]

        def exchange(mine: dict[int, bytes], tag: int) -> dict[int, bytes]:
            rooms = {other: torch.zeros(proof.CHALLENGE_BYTES, dtype=torch.uint8) for other in others}
            sent = [torch.frombuffer(bytearray(mine[other]), dtype=torch.uint8) for other in others]
            under_way = [gloo.recv([rooms[other]], other, tag) for other in others]
            under_way += [gloo.send([values], other, tag) for other, values in zip(others, sent, strict=True)]
            for work in under_way:
                work.wait(limit)
            return {other: bytes(room.tolist()) for other, room in rooms.items()}

        mine = {other: proof.challenge() for other in others}
        theirs = exchange(mine, _CHALLENGE)
        role = f"{self.name} {{}} to {{}}"
        answers = {
            other: proof.answer(secret, role.format(self.index, other), theirs[other], mine[other]) for other in others
        }
        for other, found in exchange(answers, _ANSWER).items():
            if not proof.is_right(found, secret, role.format(other, self.index), mine[other], theirs[other]):
                raise proof.NotProven(
                    f"who connected as process {self.members[other]} has not proven that it belongs to the job"
                )

    def _start(self, operation: str, *arguments: Any) -> Pending:
        return Pending(self, self._call(operation, *arguments))

    def _call(self, operation: str, *arguments: Any) -> Any:
        if self.failed is not None:
            raise self.failed
        gloo = self._gloo
        if gloo is None:
            raise createPoptorchError("This process has left the job: the group of its processes was shut down.")
        try:
            return getattr(gloo, operation)(*arguments)
        except RuntimeError as error:
            raise self.end(error) from error

    def finish(self, work: Any) -> None:
        """Wait for an operation, and look after the others meanwhile."""
        while True:
            try:
                work.wait(_SLICE)
                return
            except RuntimeError as error:
                if work.is_completed():
                    raise self.end(error) from error
                lost = self._peers.missing()
                if lost is not None:
                    raise self.end(lost) from error

    def end(self, cause: Exception) -> RecoverableError:
        """What to raise after a failure, which is the end of the group; several threads may notice it."""
        with self._ending:
            if self.failed is None:
                self.failed = cause if isinstance(cause, RecoverableError) else self._peers.failure(cause)
                self._peers.await_notice()
                self.close()
            return self.failed

    def give_up(self, what: str) -> None:
        """End the group, because this process has ``what``. All others fail in what they wait for, and say so."""
        with self._ending:
            gloo, first = self._gloo, self.failed is None
            if self.failed is None:
                self.failed = self._peers.leaves(what)
        if gloo is not None and self.size > 1:
            # A wait for a message that ends early closes all connections of the group, and with it all other waits.
            with contextlib.suppress(RuntimeError):
                other = (self.index + 1) % self.size
                gloo.recv([torch.zeros(1, dtype=torch.uint8)], other, _HANG_UP).wait(timedelta(milliseconds=1))
        if first:
            self._peers.await_notice()
        self.close()

    def close(self) -> None:
        """Leave the group. Operations under way fail; threads of the library must not outlive the interpreter."""
        gloo, self._gloo = self._gloo, None
        if gloo is not None and self.failed is not None:
            gloo.abort()


def _settle(result: Future[Any], make: Callable[[], Any]) -> None:
    try:
        result.set_result(make())
    except Exception as error:  # noqa: BLE001  raised where the result is awaited
        result.set_exception(error)


def _options(made: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(made, name, value)
    return made


class _GroupState:
    """The group of this process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.meeting: JobMeeting | None = None
        self.peers: Peers | None = None
        self.groups: dict[tuple[Any, ...], ProcessGroup] = {}
        self.everybody: ProcessGroup | None = None
        self.active: ProcessGroup | None = None
        self.made = 0
        """How many groups of all processes there have been; all processes make them in step."""


_state = _GroupState()


def ensure_initialized(process_id: int, num_processes: int) -> ProcessGroup:
    """The group of all processes of the job, made now if there is none: waits for all others to do the same.

    ``POPTORCH_DISTRIBUTED_TIMEOUT`` limits the waiting. See :mod:`poptorch.distributed.rendezvous` for where they meet.
    """
    group = _state.everybody
    if group is not None and _state.process == os.getpid():
        if (group.process_id, group.size) != (process_id, num_processes):
            raise createPoptorchError(
                f"This process takes part in a job as process {group.process_id} of {group.size}; it cannot be process "
                f"{process_id} of {num_processes} as well. Use one setting of Options.Distributed for all models, "
                "Distributed.disable() for a model of this process alone, or shut the group down first."
            )
        return _state.active or group
    if not 0 <= process_id < num_processes:
        raise createPoptorchError(f"There is no process {process_id} among {num_processes}: they count from 0.")
    seconds = float(max(1, environment.DISTRIBUTED_TIMEOUT.read()))
    _state.process, _state.active = os.getpid(), None
    descriptors.reserve(num_processes, f"a job of {num_processes} processes")
    if _state.meeting is None:
        _state.meeting = rendezvous.find(process_id, num_processes, seconds)
    meeting, name = _state.meeting, f"{launchers.attempt()}.{_state.made}"
    try:
        own = Peer.here(process_id, num_processes, meeting.keys.connection.address)
        peers = _state.peers = Peers(meeting.keys.within(f"poptorch/{name}"), own, seconds)
        group = ProcessGroup(meeting, peers, range(num_processes), process_id, seconds, name)
    finally:
        meeting.all_have_come()
    _state.made += 1
    _state.everybody = group
    _state.groups = {group.members: group}
    logger.info("Process %d of %d has met the others", process_id, num_processes)
    return group


def current() -> ProcessGroup | None:
    """The group whose members take part in operations now; ``None`` before one was made."""
    if _state.process != os.getpid():  # a forked worker takes part in nothing
        return None
    return _state.active or _state.everybody


def shutdown() -> None:
    """Leave the group, at the end of the process at the latest. All have to, before one may be made again.

    Others that still connect to this process are waited for.
    """
    groups, _state.groups = _state.groups, {}
    _state.everybody = _state.active = None
    if _state.process == os.getpid():
        if _state.peers is not None and not any(group.failed for group in groups.values()):
            _state.peers.say_good_bye({group.name: group.members for group in groups.values()})
        for group in groups.values():
            group.close()


def _end() -> None:
    """The end of the process, and of the meeting point, if this process serves it."""
    shutdown()
    if _state.process != os.getpid() or _state.meeting is None or _state.meeting.point is None:
        return
    if _state.peers is not None:
        _state.peers.await_good_byes()
    _state.meeting.point.close()


atexit.register(_end)


def group_of(members: Sequence[int], purpose: str) -> ProcessGroup:
    """A group of some of the processes for one purpose, made when it is first asked for: all members must do so."""
    everybody = _state.everybody
    assert everybody is not None
    key = (purpose, *members)
    if key not in _state.groups:
        _state.groups[key] = everybody.part(tuple(members), purpose)
    return _state.groups[key]


@contextlib.contextmanager
def use_only(members: set[int]) -> Iterator[ProcessGroup | None]:
    """In here, only some processes take part in operations. Only they may enter; ``None`` where there is no group."""
    everybody = _state.everybody
    if everybody is None:
        yield None
        return
    key = tuple(sorted(members))
    if everybody.process_id not in key:
        raise createPoptorchError(f"Process {everybody.process_id} is not among {list(key)}.")
    if key not in _state.groups:
        _state.groups[key] = everybody.part(key)
    before, _state.active = _state.active, _state.groups[key]
    try:
        yield _state.active
    finally:
        _state.active = before
