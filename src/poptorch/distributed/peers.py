"""The processes of a job: who takes part, and which one is missing when the others wait in vain."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from poptorch import environment, launchers
from poptorch.distributed.keys import Keys
from poptorch.errors import Error, RecoverableError, createPoptorchError, recoverable_error
from poptorch_files import parse_json

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 3.0
"""How long a process may take to vanish after its connections have closed, and others to hear of it."""

_LOOK_SECONDS = 2.0
"""How long the meeting point may take to say whether something is wrong, while a process waits for something else."""

_FIELDS = {
    "process_id": int, "num_processes": int, "host": str, "address": str, "pid": int, "started": str, "numbering": str,
}  # fmt: skip
"""What processes say of themselves."""


@dataclass(frozen=True)
class Peer:
    """One process of the job."""

    process_id: int
    num_processes: int
    host: str
    address: str
    """Where the others reach it, as far as it knows."""

    pid: int
    started: str
    numbering: str
    """Where its process number counts: hosts may share a name, and containers of one host number apart."""

    @staticmethod
    def here(process_id: int, num_processes: int, address: str) -> Peer:
        """This process."""
        pid = os.getpid()
        host, started, numbering = socket.gethostname(), launchers.start_time(pid), launchers.numbering()
        return Peer(process_id, num_processes, host, address, pid, started, numbering)

    @staticmethod
    def said(key: str, text: bytes) -> Peer:
        """A process by its own words under ``key``; an error names that process, not another one."""
        try:
            found: dict[str, Any] = parse_json(text)
            if {name: type(value) for name, value in found.items()} != _FIELDS:
                raise ValueError("the fields are those of another version")
        except (ValueError, TypeError, AttributeError) as error:
            raise createPoptorchError(
                f"Process {key.rpartition('/')[2]} says about itself what makes no sense ({str(error)[:200]}). Do all "
                "processes run the same release of poptorch, and does another program use the port?"
            ) from None
        return Peer(**found)

    @property
    def is_on_this_host(self) -> bool:
        """Whether its process number says something here."""
        return self.numbering == launchers.numbering()

    @property
    def is_dead(self) -> bool:
        """Whether it is known to be gone; of other hosts nothing is known."""
        if not self.is_on_this_host:
            return False
        gone = launchers.state_of(self.pid) in ("", "Z", "X")
        return gone or launchers.start_time(self.pid) != self.started

    @property
    def is_stopped(self) -> bool:
        """Whether it is known to be halted, by SIGSTOP for instance."""
        return self.is_on_this_host and launchers.state_of(self.pid) in ("T", "t")

    def __str__(self) -> str:
        return f"process {self.process_id} (pid {self.pid} on {self.host})"


class Peers:
    """Everybody, with the keys by which processes tell each other who is lost, and who has ended."""

    def __init__(self, keys: Keys, own: Peer, seconds: float) -> None:
        self._keys = keys
        self._own = own.process_id
        self._seconds = seconds
        self._known_to_have_ended: set[int] = set()
        self.all = self._meet(own)

    def _meet(self, own: Peer) -> Sequence[Peer]:
        """Wait for all processes; they must agree about how many they are, and no two may have one number."""
        keys, size = self._keys, own.num_processes
        try:
            if keys.add(f"claimed/{own.process_id}", 1, seconds=self._seconds) > 1:
                problem = (
                    f"Two processes of the job say that they are process {own.process_id}. Give each a number of its "
                    "own with Options.Distributed.configureProcessId, or let the launcher do so."
                )
                keys.set("refused", problem)  # one number is missing then: the others need not wait for it
                raise createPoptorchError(problem)
            keys.set(f"here/{own.process_id}", json.dumps(asdict(own)))
            return self._wait_for([f"here/{i}" for i in range(size)], own)
        except Error:
            if own.process_id == 0:
                time.sleep(_GRACE_SECONDS)  # so that the others can still read what is wrong
            raise
        except RuntimeError as error:
            raise createPoptorchError(
                f"Process 0 has gone before all {size} processes had come ({error}). Its own output says why."
            ) from error

    def _wait_for(self, keys: list[str], own: Peer) -> Sequence[Peer]:
        deadline = next_look = time.monotonic()
        deadline += self._seconds
        while not self._keys.check(keys):
            if time.monotonic() >= next_look:
                if self._keys.check(["refused"]):
                    raise createPoptorchError(self._keys.get("refused").decode())
                self._check_sizes(keys, own)  # of those that have come
                next_look = time.monotonic() + 1
            if time.monotonic() > deadline:
                said = zip(keys, self._keys.find_all(keys), strict=True)
                missing = ", ".join(key.removeprefix("here/") for key, text in said if text is None)
                raise createPoptorchError(
                    f"Of {len(keys)} processes, these have not come within {self._seconds:g} s: {missing}. Have they "
                    "been started, with the same number of processes? "
                    f"{environment.DISTRIBUTED_TIMEOUT.name} sets the limit."
                )
            time.sleep(_POLL_SECONDS)
        return self._check_sizes(keys, own)

    def _check_sizes(self, keys: list[str], own: Peer) -> Sequence[Peer]:
        texts = zip(keys, self._keys.find_all(keys), strict=True)
        found = [Peer.said(key, text) for key, text in texts if text is not None]
        for peer in found:
            if peer.num_processes != own.num_processes:
                raise createPoptorchError(
                    f"Processes disagree about how many they are: process {peer.process_id} says {peer.num_processes}, "
                    f"process {own.process_id} says {own.num_processes}. Check Options.Distributed in all of them."
                )
        return found

    # -- faults --------------------------------------------------------------------------------------------------

    def missing(self) -> RecoverableError | None:
        """The error to raise if a process is lost, as far as is known; asked while waiting.

        Who has ended in good order is not lost: what others still need of it has been sent.
        """
        dead = [peer for peer in self.all if peer.process_id != self._own and peer.is_dead]
        said = self._said()
        if said is None and dead:
            dead = [peer for peer in dead if not self._has_ended(peer)]
        if said is None and dead:
            said = self._say(f"{', '.join(map(str, dead))} {'has' if len(dead) == 1 else 'have'} died")
        return None if said is None else self._error(said)

    def failure(self, cause: Exception, problem: str = "") -> RecoverableError:
        """The error to raise after ``cause`` stopped a conversation: a lost process, or else the problem.

        Without a problem, it finds out which process is to blame.
        """
        with contextlib.suppress(RuntimeError):
            self._keys.set(f"waits/{self._own}", "1", seconds=_LOOK_SECONDS)
        deadline = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < deadline:
            found = self.missing()
            if found is not None:
                return found
            time.sleep(_POLL_SECONDS)
        return self._error(self._say(problem or self._blame(cause)))

    def leaves(self, what: str) -> RecoverableError:
        """This process goes, having ``what``: the others hear of it."""
        return self._error(self._say(f"{self.all[self._own]} {what}"))

    def _blame(self, cause: Exception) -> str:
        """What is wrong, when no process is known to be dead: perhaps one is stopped, or does something else."""
        stopped = [peer for peer in self.all if peer.is_stopped]
        if stopped:
            return f"{stopped[0]} is stopped and does not answer"
        ended = [peer for peer in self.all if peer.process_id != self._own and self._has_ended(peer)]
        if ended:
            return f"{ended[0]} has come to its end, and others still needed it"
        try:
            words = self._keys.find_all([f"waits/{peer.process_id}" for peer in self.all], seconds=_LOOK_SECONDS)
            silent = [peer for peer, word in zip(self.all, words, strict=True) if word is None]
        except RuntimeError as error:
            return f"{error}. A process, or the network to it, is gone: {cause}"
        if silent:
            who = ", ".join(map(str, silent))
            return f"{who} did not come to a meeting of all processes within {self._seconds:g} s"
        return f"a process does not answer: {cause}"

    def await_notice(self) -> None:
        """Before this process ends: let the others hear of the failure, if they look at the store that is here."""
        with contextlib.suppress(RuntimeError):
            self._keys.add("heard", 1, seconds=_LOOK_SECONDS)
            alive = sum(not (peer.is_dead or peer.is_stopped) for peer in self.all)  # or on another host
            deadline = time.monotonic() + _GRACE_SECONDS
            while time.monotonic() < deadline and self._keys.add("heard", 0, seconds=_LOOK_SECONDS) < alive:
                time.sleep(_POLL_SECONDS)

    # -- the end -------------------------------------------------------------------------------------------------

    def is_connected(self, group: str) -> None:
        """This process has connections to all members of a group."""
        with contextlib.suppress(RuntimeError):
            self._keys.set(f"connected/{group}/{self._own}", "1")

    def say_good_bye(self, groups: Mapping[str, Sequence[int]]) -> None:
        """Before this process leaves: let those that still connect to it come to the end of that, and say good-bye."""
        with contextlib.suppress(RuntimeError):
            self._keys.set(f"ended/{self._own}", "1", seconds=_LOOK_SECONDS)
            for group, members in groups.items():
                self._await([f"connected/{group}/{member}" for member in members], members, self._seconds)

    def await_good_byes(self) -> None:
        """Before the meeting point closes with this process: those that end at about the same time still need it."""
        with contextlib.suppress(RuntimeError):
            numbers = range(len(self.all))
            self._await([f"ended/{number}" for number in numbers], numbers, _GRACE_SECONDS)

    def _await(self, words: Sequence[str], members: Sequence[int], seconds: float) -> None:
        """Wait until each process has said its word, unless it cannot say it any more."""
        deadline = time.monotonic() + seconds
        silent = dict(zip(words, members, strict=True))
        while time.monotonic() < deadline and self._said() is None:
            said = self._keys.find_all(list(silent), seconds=_LOOK_SECONDS)
            silent = {w: m for (w, m), word in zip(silent.items(), said, strict=True) if word is None}
            if all(self.all[m].is_dead or self.all[m].is_stopped for m in silent.values()):
                return
            time.sleep(_POLL_SECONDS)

    def _has_ended(self, peer: Peer) -> bool:
        """Whether a process has said good-bye. Process 0 says so by closing the meeting point, if it serves it."""
        if self._keys.connection.has_ended:
            return peer.process_id == 0 or peer.process_id in self._known_to_have_ended
        with contextlib.suppress(RuntimeError):
            if self._keys.check([f"ended/{peer.process_id}"], seconds=_LOOK_SECONDS):
                self._known_to_have_ended.add(peer.process_id)
                return True
        return peer.process_id == 0 and self._keys.connection.has_ended

    def _said(self) -> str | None:
        """What somebody said is wrong. The meeting point may go at any moment, or not answer."""
        with contextlib.suppress(RuntimeError):
            found = self._keys.find("lost", seconds=_LOOK_SECONDS)
            return None if found is None else found.decode(errors="replace")
        return None

    def _say(self, what: str) -> str:
        """Tell the others; the first to speak is believed, so that all name the same process."""
        with contextlib.suppress(RuntimeError):
            return self._keys.compare_set("lost", "", what, seconds=_GRACE_SECONDS).decode(errors="replace")
        return what

    def _error(self, what: str) -> RecoverableError:
        return recoverable_error(
            f"The job of {len(self.all)} processes cannot go on: {what}. Weights, optimizer and random state of this "
            "process are those of the last complete update, or of the one under way. End all processes and start the "
            f"job again from the latest checkpoint. ({environment.DISTRIBUTED_TIMEOUT.name} is {self._seconds:g} s.)",
            "PARTITION_RESET",
        )
