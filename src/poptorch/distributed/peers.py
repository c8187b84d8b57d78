"""The processes of a job: who takes part, and which one is missing when the others wait in vain."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch._C._distributed_c10d import Store

from poptorch import environment, launchers
from poptorch.errors import Error, RecoverableError, createPoptorchError, recoverable_error
from poptorch_files import parse_json

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 3.0
"""How long a process may take to vanish after its connections have closed, and others to hear of it."""


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
    """Everybody, with the store by which processes tell each other who is lost."""

    def __init__(self, store: Store, own: Peer, seconds: float) -> None:
        self._store = store
        self._own = own.process_id
        self._seconds = seconds
        self.all = self._meet(own)

    def _meet(self, own: Peer) -> Sequence[Peer]:
        """Wait for all processes; they must agree about how many they are, and no two may have one number."""
        store, size = self._store, own.num_processes
        if store.add(f"claimed/{own.process_id}", 1) > 1:
            problem = (
                f"Two processes of the job say that they are process {own.process_id}. Give each a number of its own "
                "with Options.Distributed.configureProcessId, or let the launcher do so."
            )
            store.set("refused", problem)  # one number is missing then: the others need not wait for it
            raise createPoptorchError(problem)
        store.set(f"here/{own.process_id}", json.dumps(asdict(own)))
        try:
            return self._wait_for([f"here/{i}" for i in range(size)], own)
        except Error:
            if own.process_id == 0:
                time.sleep(_GRACE_SECONDS)  # so that the others can still read what is wrong
            raise
        except RuntimeError as error:
            raise createPoptorchError(
                f"Process 0 has gone before all {size} processes had come. Its own output says why."
            ) from error

    def _wait_for(self, keys: list[str], own: Peer) -> Sequence[Peer]:
        deadline = next_look = time.monotonic()
        deadline += self._seconds
        while not self._store.check(keys):
            if time.monotonic() >= next_look:
                if self._store.check(["refused"]):
                    raise createPoptorchError(self._store.get("refused").decode())
                self._check_sizes([k for k in keys if self._store.check([k])], own)
                next_look = time.monotonic() + 1
            if time.monotonic() > deadline:
                missing = ", ".join(k.removeprefix("here/") for k in keys if not self._store.check([k]))
                raise createPoptorchError(
                    f"Of {len(keys)} processes, these have not come within {self._seconds:g} s: {missing}. Have they "
                    "been started, with the same number of processes? "
                    f"{environment.DISTRIBUTED_TIMEOUT.name} sets the limit."
                )
            time.sleep(_POLL_SECONDS)
        return self._check_sizes(keys, own)

    def _check_sizes(self, keys: list[str], own: Peer) -> Sequence[Peer]:
        found = [_described(key, self._store.get(key)) for key in keys]
        for peer in found:
            if peer.num_processes != own.num_processes:
                raise createPoptorchError(
                    f"Processes disagree about how many they are: process {peer.process_id} says {peer.num_processes}, "
                    f"process {own.process_id} says {own.num_processes}. Check Options.Distributed in all of them."
                )
        return found

    # -- faults --------------------------------------------------------------------------------------------------

    def missing(self) -> RecoverableError | None:
        """The error to raise if a process is lost, as far as is known; asked while waiting."""
        dead = [peer for peer in self.all if peer.process_id != self._own and peer.is_dead]
        said = self._said()
        if said is None and dead:
            said = self._say(f"{', '.join(map(str, dead))} {'has' if len(dead) == 1 else 'have'} died")
        return None if said is None else self._error(said)

    def failure(self, cause: Exception, problem: str = "") -> RecoverableError:
        """The error to raise after ``cause`` stopped a conversation: a lost process, or else the problem.

        Without a problem, it finds out which process is to blame.
        """
        with contextlib.suppress(Exception):
            if self._can_talk:
                self._store.set(f"waits/{self._own}", "1")
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
        with contextlib.suppress(Exception):
            silent = [peer for peer in self.all if not self._store.check([f"waits/{peer.process_id}"])]
            if silent:
                who = ", ".join(map(str, silent))
                return f"{who} did not come to a meeting of all processes within {self._seconds:g} s"
        return f"a process does not answer: {cause}"

    def await_notice(self) -> None:
        """Before this process ends: let the others hear of the failure, if they look at the store that is here."""
        with contextlib.suppress(Exception):
            if not self._can_talk:
                return
            self._store.add("heard", 1)
            alive = sum(not (peer.is_dead or peer.is_stopped) for peer in self.all)  # or on another host
            deadline = time.monotonic() + _GRACE_SECONDS
            while time.monotonic() < deadline and self._store.add("heard", 0) < alive:
                time.sleep(_POLL_SECONDS)

    @property
    def _can_talk(self) -> bool:
        """Whether the store is there: usually process 0 serves it."""
        return not self.all[0].is_dead

    def _said(self) -> str | None:
        with contextlib.suppress(Exception):  # the store may go at any moment
            if self._can_talk and self._store.check(["lost"]):
                return self._store.get("lost").decode()
        return None

    def _say(self, what: str) -> str:
        """Tell the others; the first to speak is believed, so that all name the same process."""
        with contextlib.suppress(Exception):  # as above
            if self._can_talk:
                self._store.set_timeout(timedelta(seconds=_GRACE_SECONDS))
                return str(self._store.compare_set("lost", "", what).decode())
        return what

    def _error(self, what: str) -> RecoverableError:
        return recoverable_error(
            f"The job of {len(self.all)} processes cannot go on: {what}. Weights, optimizer and random state of this "
            "process are those of the last complete update, or of the one under way. End all processes and start the "
            f"job again from the latest checkpoint. ({environment.DISTRIBUTED_TIMEOUT.name} is {self._seconds:g} s.)",
            "PARTITION_RESET",
        )


def _described(key: str, content: bytes) -> Peer:
    """What a process says about itself; the error for anything else names that process, not another one."""
    try:
        peer = Peer(**parse_json(content))
        if not all(type(number) is int for number in (peer.process_id, peer.num_processes, peer.pid)):
            raise TypeError("a number is missing")
    except (ValueError, TypeError) as error:
        raise createPoptorchError(
            f"Process {key.rpartition('/')[2]} says about itself what makes no sense ({str(error)[:200]}). Do all "
            "processes run the same release, and does another program use the port?"
        ) from None
    return peer
