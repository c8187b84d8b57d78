"""What launchers of several processes say in the environment: which process this is, and to which job it belongs.

>>> layout({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"})
Layout(process_id=1, num_processes=4)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from poptorch.environment import integer

WORLD_SIZE = "OMPI_COMM_WORLD_SIZE"
WORLD_RANK = "OMPI_COMM_WORLD_RANK"
"""The two names of the original, which Open MPI and PopRun set."""

INTERFACES = "GLOO_SOCKET_IFNAME"
"""The variable of torch that names network interfaces."""


class Layout(NamedTuple):
    """Which of how many processes this is."""

    process_id: int
    num_processes: int


@dataclass(frozen=True)
class Launcher:
    """A program that starts processes, and the variables by which it tells them about the job."""

    name: str
    num_processes: str
    process_id: str
    proof: tuple[str, ...] = ()
    """Variables that must be there too, because the names of the others are common ones."""

    job: tuple[str, ...] = ()
    """Variables that have the same values in all processes of a job, and others in every other job."""

    def started(self, variables: Mapping[str, str]) -> bool:
        """Whether it started this process."""
        return all(name in variables for name in (self.num_processes, self.process_id, *self.proof))


LAUNCHERS = (
    Launcher("Open MPI, PopRun", WORLD_SIZE, WORLD_RANK, job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")),
    Launcher("torchrun", "WORLD_SIZE", "RANK", proof=("MASTER_ADDR",), job=("TORCHELASTIC_RUN_ID", "MASTER_PORT")),
    # Without srun, the variables of the whole job are there, but only one process.
    Launcher("Slurm (srun)", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", job=("SLURM_JOB_ID", "SLURM_STEP_ID")),
    Launcher("MPICH, Intel MPI", "PMI_SIZE", "PMI_RANK", job=("PMI_ID",)),
)
"""The first that started this process counts."""


def layout(variables: Mapping[str, str] | None = None) -> Layout:
    """Which of how many processes this is; process 0 of 1 where no launcher says otherwise.

    >>> layout({})
    Layout(process_id=0, num_processes=1)
    """
    known = os.environ if variables is None else variables
    for launcher in LAUNCHERS:
        if launcher.started(known):
            size, rank = (integer(n, 0, known) for n in (launcher.num_processes, launcher.process_id))
            return Layout(rank, size)
    # Half of the original's pair is enough, as it was there: the other half has its default.
    return Layout(integer(WORLD_RANK, 0, known), integer(WORLD_SIZE, 1, known))


def master() -> tuple[str, int] | None:
    """Where torchrun, or the user, wants processes to meet."""
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        return None
    return os.environ["MASTER_ADDR"], integer("MASTER_PORT", 0)


def master_is_running() -> bool:
    """Whether the launcher itself listens there, so that no process has to."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def network_interfaces() -> list[str]:
    """The network interfaces by which the user wants processes to speak to each other; none: choose."""
    return [name for name in os.environ.get(INTERFACES, "").split(",") if name]


def attempt() -> str:
    """The number of restarts of the job: what an earlier attempt left at the meeting point is not ours."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def job_name() -> str:
    """A name that the processes of this job share with no other job on this host.

    Where no launcher gives one, processes of one parent are one job.
    """
    for launcher in LAUNCHERS:
        found = [os.environ[name] for name in launcher.job if name in os.environ]
        if launcher.started(os.environ) and found:
            return "-".join("".join(c if c.isalnum() else "_" for c in text) for text in found)
    parent = os.getppid()
    return f"{parent}-{start_time(parent)}"


def start_time(process: int) -> str:
    """When a process of this host started, in its own unit: numbers of processes are used again.

    >>> start_time(os.getpid()) == start_time(os.getpid())
    True
    """
    fields = _stat(process)
    return fields[19] if len(fields) > 19 else ""


def state_of(process: int) -> str:
    """The state letter of a process of this host; empty if there is none.

    >>> state_of(os.getpid())
    'R'
    """
    fields = _stat(process)
    return fields[0] if fields else ""


def numbering() -> str:
    """Where numbers of processes are those of this one: this start of the host, and this container.

    >>> numbering() == numbering()
    True
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename


def _stat(process: int) -> list[str]:
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
