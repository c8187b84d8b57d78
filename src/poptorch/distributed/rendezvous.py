"""Where the processes of a job meet: a small key-value store that one of them, or their launcher, serves.

The first of these that applies counts:

- ``POPTORCH_RENDEZVOUS=host:port``: process 0 listens there;
- ``MASTER_ADDR`` and ``MASTER_PORT``, as torchrun and PopRun set them: the launcher listens there, or else process 0;
- ``torch.distributed.init_process_group``, if the program has called it for the same processes: its store is used;
- neither, as with mpirun and Slurm: process 0 listens on a free port of this host and writes its address to a file in
  the temporary folder, which is named after the job. For several hosts, set one of
  the first two.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from poptorch import environment, launchers
from poptorch._logging import logger
from poptorch.errors import Error, createPoptorchError

_POLL_SECONDS = 0.05


def find_store(process_id: int, num_processes: int, seconds: float) -> Store:
    """The store that all processes of the job share."""
    chosen = environment.RENDEZVOUS.read()
    if chosen:
        host, _, port = chosen.rpartition(":")
        if not host or not port.isdigit():
            raise createPoptorchError(f"{environment.RENDEZVOUS.name} is {chosen!r}; use host:port, or unset it.")
        return _tcp(host, int(port), process_id == 0, seconds)
    master = launchers.master()
    if master is not None:
        return _tcp(*master, process_id == 0 and not launchers.master_is_running(), seconds)
    if dist.is_initialized() and (dist.get_rank(), dist.get_world_size()) == (process_id, num_processes):
        return dist.distributed_c10d._get_default_store()
    return _by_file(process_id, num_processes, seconds)


def _tcp(host: str, port: int, listens: bool, seconds: float) -> Store:
    try:
        return TCPStore(
            host, port, None, listens, timedelta(seconds=seconds), wait_for_workers=False, multi_tenant=True
        )
    except (RuntimeError, ValueError) as error:
        if listens:
            raise createPoptorchError(
                f"Process 0 cannot listen on {host}:{port}, where the other processes would find it: "
                f"{_first_line(error)}. Is the port taken, by an earlier job for instance? Choose another one "
                f"(MASTER_PORT, torchrun --master-port, or {environment.RENDEZVOUS.name})."
            ) from error
        raise createPoptorchError(
            f"Process 0 does not answer at {host}:{port} within {seconds:g} s: {_first_line(error)}. Has it been "
            f"started, and is the address right? {environment.DISTRIBUTED_TIMEOUT.name} sets the limit."
        ) from error


def _by_file(process_id: int, num_processes: int, seconds: float) -> Store:
    folder = Path(tempfile.gettempdir()) / f"poptorch-{os.getuid()}"
    path = folder / f"{launchers.job_name()}-{num_processes}.json"
    if process_id == 0:
        store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=seconds), wait_for_workers=False)
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_owner(folder)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"port": store.port, "pid": os.getpid()}), encoding="utf-8")
        draft.replace(path)
        logger.debug("Process 0 listens on port %d; %s says so", store.port, path)
        return store
    return _retry(lambda: _tcp_of_file(path, seconds), path, num_processes, seconds)


def forget_address() -> None:
    """Remove the file with the address of this process, after all have come."""
    folder = Path(tempfile.gettempdir()) / f"poptorch-{os.getuid()}"
    for path in folder.glob(f"{launchers.job_name()}-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads(path.read_text(encoding="utf-8"))["pid"] == os.getpid():
                path.unlink()


def _tcp_of_file(path: Path, seconds: float) -> Store | None:
    try:
        _check_owner(path.parent)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not there yet
    if launchers.state_of(content["pid"]) in ("", "Z"):
        return None  # what a process left that was killed
    with contextlib.suppress(Error):
        return _tcp("127.0.0.1", int(content["port"]), False, seconds)
    return None


def _retry(connect: Callable[[], Store | None], path: Path, num_processes: int, seconds: float) -> Store:
    deadline = time.monotonic() + seconds
    while True:
        store = connect()
        if store is not None:
            return store
        if time.monotonic() > deadline:
            raise createPoptorchError(
                f"Process 0 of {num_processes} has not come within {seconds:g} s: there is no {path}. Start all "
                f"processes with one launcher on one host, or say where process 0 is with MASTER_ADDR and MASTER_PORT. "
                f"{environment.DISTRIBUTED_TIMEOUT.name} sets the limit."
            )
        time.sleep(_POLL_SECONDS)


def _check_owner(folder: Path) -> None:
    """The folder has a name that others can guess: only our own is used."""
    if folder.stat().st_uid != os.getuid():
        raise createPoptorchError(
            f"{folder} belongs to another user. Set TMPDIR to a folder of your own, or {environment.RENDEZVOUS.name} "
            "to host:port."
        )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".")
