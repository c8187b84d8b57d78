"""Where the processes of a job meet: the store of :mod:`poptorch.distributed.meeting_point`.

The first of these that applies says where it is:

- ``POPTORCH_RENDEZVOUS=host:port``: process 0 listens there;
- PopRun listens itself, and tells the instances where;
- a launcher says that all processes are on this host: process 0 listens on a free port of the loopback address and
  writes it to a file that is named after the job;
- ``MASTER_ADDR`` and ``MASTER_PORT``, as torchrun sets them: process 0 listens at that address, on a port that it
  writes to torch's own store there;
- ``torch.distributed.init_process_group``, if the program has called it for the same processes: the same by its store;
- neither, as with mpirun and Slurm: by a file, as above. For several hosts, set one of the others.

Who comes has to know the secret of the job: ``POPTORCH_JOB_SECRET``, or what process 0 wrote to a file that only this
user can read, where that is possible. Without one, everybody who reaches the address can join: a warning says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from poptorch import environment, launchers
from poptorch._logging import logger, warn_once
from poptorch.distributed import proof
from poptorch.distributed.addresses import is_of_this_host_only, listen
from poptorch.distributed.invitations import Invitation, private_folder
from poptorch.distributed.keys import Connection, Keys, Unreachable
from poptorch.distributed.meeting_point import MeetingPoint
from poptorch.errors import createPoptorchError

T = TypeVar("T")

_POLL_SECONDS = 0.05
_ATTEMPT_SECONDS = 5.0
_LOOPBACK = "127.0.0.1"


class JobMeeting:
    """The meeting point of the job, as one process has it."""

    def __init__(self, keys: Keys, secret: bytes, point: MeetingPoint | None, file: Path | None, board: object) -> None:
        self.keys = keys
        self.secret = secret
        """What processes prove to each other; empty if nobody gave them a secret."""

        self.point = point
        """What this process serves."""

        self._file = file
        self._board = board  # torch serves its store as long as somebody has it

    def all_have_come(self) -> None:
        """Remove the file that shows the way."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def find(process_id: int, num_processes: int, seconds: float) -> JobMeeting:
    """Come to the meeting point of the job. Process 0 serves it, unless its launcher does."""
    serves = process_id == 0
    chosen = environment.RENDEZVOUS.read()
    if chosen:
        host, port = _address(chosen)
        return _at(host, port, serves, seconds)
    served = launchers.served_store()
    if served is not None:
        host, port = _address(served)
        return _meeting(_connect(host, port, proof.chosen_secret(), seconds), proof.chosen_secret())
    master = launchers.master()
    if launchers.all_are_here(num_processes):
        return _by_file(_file_of_job(num_processes), serves, num_processes, seconds)
    if master is not None:
        host, port = master
        listens = serves and not launchers.master_is_running()
        return _by_board(lambda: _torch_store(host, port, listens, seconds), host, serves, seconds)
    if dist.is_initialized() and (dist.get_rank(), dist.get_world_size()) == (process_id, num_processes):
        store = dist.distributed_c10d._get_default_store()
        return _by_board(lambda: store, _host_of(store), serves, seconds)
    return _by_file(_file_of_job(num_processes), serves, num_processes, seconds)


def _meeting(
    connection: Connection, secret: bytes, point: MeetingPoint | None = None, file: Path | None = None,
    board: object = None,
) -> JobMeeting:  # fmt: skip
    keys = Keys(connection, f"{launchers.job_name()}/" if launchers.served_store() else "")
    return JobMeeting(keys, secret, point, file, board)


# -- at an address that everybody knows ------------------------------------------------------------------------------


def _at(host: str, port: int, serves: bool, seconds: float) -> JobMeeting:
    """Process 0 listens at a given address; on this host only, it writes the secret to a file."""
    secret, by_file = _secret_for(host)
    file = private_folder() / f"port-{port}.json" if by_file else None
    if serves:
        point = _serve(host, port, secret)
        if file is not None:
            Invitation.by_this_process(point.port, secret).write(file)
        return _meeting(_connect(host, port, secret, seconds), secret, point, file)
    if file is None:
        return _meeting(_connect(host, port, secret, seconds), secret)

    def come() -> JobMeeting | None:
        invitation = Invitation.read(file)
        # Without one, the port may be served for a container with a folder of its own, or by somebody else.
        return None if invitation is None else _try(host, port, invitation.secret, seconds)

    missing = f"Process 0 does not answer at {host}:{port} within {seconds:g} s: there is no {file}"
    return _retry(come, f"{missing}. Has it been started, by the same user?", seconds)


def _serve(host: str, port: int, secret: bytes) -> MeetingPoint:
    try:
        listening = listen(host, port)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    point = MeetingPoint(listening, secret)
    logger.debug("Process 0 listens at %s:%d", point.address, point.port)
    return point


def _cannot_listen(host: str, port: int, error: Exception) -> Exception:
    return createPoptorchError(
        f"Process 0 cannot listen on {host}:{port}, where the other processes would find it: {_first_line(error)}. Is "
        "the port taken, by an earlier job for instance? Choose another one (MASTER_PORT, torchrun --master-port, or "
        f"{environment.RENDEZVOUS.name})."
    )


def _connect(host: str, port: int, secret: bytes, seconds: float) -> Connection:
    try:
        return Connection(host, port, secret, seconds)
    except proof.NotProven as error:
        raise _not_proven(host, port, error) from error
    except Unreachable as error:
        raise _no_answer(host, port, seconds, error) from error


def _not_proven(host: str, port: int, error: Exception) -> Exception:
    return createPoptorchError(f"The processes of this job cannot meet at {host}:{port}: {error}.")


def _no_answer(host: str, port: int, seconds: float, error: BaseException | str) -> Exception:
    return createPoptorchError(
        f"Process 0 does not answer at {host}:{port} within {seconds:g} s: {_first_line(error)}. Has it been started, "
        f"and is the address right? {environment.DISTRIBUTED_TIMEOUT.name} sets the limit."
    )


def _secret_for(host: str) -> tuple[bytes, bool]:
    """The secret of a job that meets at a host, and whether process 0 makes it, and hands it on in a file."""
    secret = proof.chosen_secret()
    if secret:
        return secret, False
    if is_of_this_host_only(host):
        return proof.new_secret().encode(), True
    warn_once(
        ("no secret", host),
        f"The processes of this job meet at {host}, and have no secret: whoever reaches that address can join the job, "
        f"read its weights and end it. Set {environment.JOB_SECRET.name} to one random text in all processes.",
    )
    return b"", False


# -- by a file on this host -------------------------------------------------------------------------------------------


def _file_of_job(num_processes: int) -> Path:
    return private_folder() / f"{launchers.job_name()}-{launchers.attempt()}-{num_processes}.json"


def _by_file(path: Path, serves: bool, num_processes: int, seconds: float) -> JobMeeting:
    if serves:
        other = Invitation.read(path)
        if other is not None and other.pid != os.getpid():
            raise createPoptorchError(
                f"Two processes of the job say that they are process 0 of {num_processes}: process {other.pid} of this "
                "host waits for the others already. Give each a number of its own with "
                "Options.Distributed.configureProcessId, or let the launcher do so. If it is of another job, end that "
                f"first, or set {environment.RENDEZVOUS.name} to an address of this one."
            )
        secret = proof.chosen_secret() or proof.new_secret().encode()
        point = _serve(_LOOPBACK, 0, secret)
        Invitation.by_this_process(point.port, secret).write(path)
        logger.debug("%s says where process 0 listens", path)
        return _meeting(_connect(_LOOPBACK, point.port, secret, seconds), secret, point, path)

    def come() -> JobMeeting | None:
        invitation = Invitation.read(path)
        return None if invitation is None else _try(_LOOPBACK, invitation.port, invitation.secret, seconds)

    return _retry(
        come,
        f"Process 0 of {num_processes} has not come within {seconds:g} s: there is no {path}. Start all processes with "
        "one launcher on one host, or say where process 0 is with MASTER_ADDR and MASTER_PORT.",
        seconds,
    )


def _try(host: str, port: int, secret: bytes, seconds: float) -> JobMeeting | None:
    """Come to where a file leads; ``None`` if nobody answers there, because the file is old."""
    try:
        return _meeting(Connection(host, port, secret, min(seconds, _ATTEMPT_SECONDS)), secret)
    except Unreachable:
        return None
    except proof.NotProven as error:
        raise _not_proven(host, port, error) from error


def _retry(come: Callable[[], JobMeeting | None], problem: str, seconds: float) -> JobMeeting:
    """Try until it works."""
    deadline = time.monotonic() + seconds
    while True:
        found = come()
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise createPoptorchError(f"{problem} {environment.DISTRIBUTED_TIMEOUT.name} sets the limit.")
        time.sleep(_POLL_SECONDS)


# -- by a store of torch ----------------------------------------------------------------------------------------------


def _by_board(open_board: Callable[[], Store], host: str, serves: bool, seconds: float) -> JobMeeting:
    """Process 0 writes its port to a store of torch. Nothing else is done there: torch's stores know no secrets."""
    key = f"poptorch/meeting/{launchers.attempt()}"
    secret, by_file = _secret_for(host)
    if serves:
        board = open_board()
        point = _serve(host, 0, secret)
        file = private_folder() / f"{proof.new_secret()}.json" if by_file else None
        if file is not None:
            Invitation.by_this_process(point.port, secret).write(file)
        _in_time(lambda: board.set(key, json.dumps([point.port, file.stem if file else ""])), host, seconds)
        return _meeting(_connect(host, point.port, secret, seconds), secret, point, file, board)

    def look() -> tuple[Store, bytes]:
        board = open_board()
        board.set_timeout(timedelta(seconds=seconds))
        return board, board.get(key)

    board, said = _in_time(look, host, seconds)
    try:
        port, name = json.loads(said[:1000])
        port = int(port)
        invitation = Invitation.read(private_folder() / f"{int(name, 16):064x}.json") if name else None
    except (ValueError, TypeError) as error:
        raise createPoptorchError(f"What the store of torch at {host} says of this job is no port.") from error
    if name and invitation is None and not proof.chosen_secret():
        raise createPoptorchError(
            f"Process 0 has written the secret of the job to a file in its own {private_folder()}, which is not this "
            f"one. Set TMPDIR to the same folder in all processes, or {environment.JOB_SECRET.name} to the same text."
        )
    if invitation is not None:
        secret = invitation.secret
    return _meeting(_connect(host, port, secret, seconds), secret, board=board)


def _torch_store(host: str, port: int, listens: bool, seconds: float) -> Store:
    """Torch's store at the address of the master; the program may use it, too."""
    limit = timedelta(seconds=seconds)
    if not listens:
        try:
            return TCPStore(host, port, None, False, limit, wait_for_workers=False, multi_tenant=True)
        except (RuntimeError, ValueError) as error:
            raise _no_answer(host, port, seconds, error) from error
    try:
        own = listen(host, port).detach()
    except OSError:
        own = None  # this process may serve it already: torch knows
    try:
        return TCPStore(host, port, None, True, limit, wait_for_workers=False, multi_tenant=True, master_listen_fd=own)
    except (RuntimeError, ValueError) as error:
        raise _cannot_listen(host, port, error) from error


def _in_time(call: Callable[[], T], host: str, seconds: float) -> T:
    """The result of a call that torch gives no limit: what listens there may accept, and say nothing."""
    result: Future[T] = Future()

    def settle() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001  raised where the result is awaited
            result.set_exception(error)

    threading.Thread(target=settle, name="poptorch-store", daemon=True).start()
    try:
        return result.result(seconds)
    except (FutureTimeout, dist.DistError) as error:
        raise createPoptorchError(
            f"The store of torch at {host}, by which the processes of this job find each other, does not answer within "
            f"{seconds:g} s, or process 0 has not come: {_first_line(error) or 'it says nothing'}. Is something else "
            f"listening there? {environment.DISTRIBUTED_TIMEOUT.name} sets the limit."
        ) from error


def _host_of(store: Store) -> str:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else _LOOPBACK


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise createPoptorchError(f"{environment.RENDEZVOUS.name} is {text!r}; use host:port, or unset it.")
    return host.strip("[]"), int(port)


def _first_line(error: BaseException | str) -> str:
    return str(error).partition("\n")[0].rstrip(".")
