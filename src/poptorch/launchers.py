"""What launchers of several processes say in the environment: which process this is, and to which job it belongs.

>>> layout({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"})
JobLayout(process_id=1, num_processes=4)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from poptorch.environment import integer
from poptorch.errors import createPoptorchError

WORLD_SIZE = "OMPI_COMM_WORLD_SIZE"
WORLD_RANK = "OMPI_COMM_WORLD_RANK"
"""The two names of the original, which Open MPI and PopRun set."""

SERVED_STORE = "POPDIST_STORE"
"""Where PopRun itself serves the meeting point of its job: the name of the job, and host:port."""

INTERFACES = "GLOO_SOCKET_IFNAME"
"""The variable of torch that names network interfaces."""


class JobLayout(NamedTuple):
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

    def layout(self, variables: Mapping[str, str]) -> JobLayout:
        """What it says."""
        return JobLayout(*(integer(name, 0, variables) for name in (self.process_id, self.num_processes)))

    def said(self, variables: Mapping[str, str]) -> str:
        """What it says, for messages."""
        found = self.layout(variables)
        names = f"{self.process_id}, {self.num_processes}"
        return f"{self.name} says that it is process {found.process_id} of {found.num_processes} ({names})"


TORCHRUN = Launcher(
    "torchrun", "WORLD_SIZE", "RANK",
    proof=("MASTER_ADDR", "TORCHELASTIC_RUN_ID"), job=("TORCHELASTIC_RUN_ID", "MASTER_PORT"),
)  # fmt: skip
OPEN_MPI = Launcher("Open MPI", WORLD_SIZE, WORLD_RANK, job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"))
# PMI_ID is not the job's: each process has its own.
MPICH = Launcher("MPICH or Intel MPI", "PMI_SIZE", "PMI_RANK", job=("PMI_PORT",))
BY_HAND = Launcher("whoever set MASTER_ADDR", "WORLD_SIZE", "RANK", proof=("MASTER_ADDR",), job=("MASTER_PORT",))
# Without srun, the variables of the whole job are there, but only one process.
SLURM = Launcher("Slurm (srun)", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", job=("SLURM_JOB_ID", "SLURM_STEP_ID"))

LAUNCHERS = (TORCHRUN, OPEN_MPI, MPICH, BY_HAND, SLURM)
"""The nearest to the process first: torchrun is started by the others, and they are started by Slurm."""


def nearest(variables: Mapping[str, str]) -> Launcher | None:
    """The launcher that started this process, when several speak of processes; ``None`` if none does.

    Containers, batch systems and operators leave variables of a launcher that started one process only. So the nearest
    of those that speak of several processes counts.

    >>> alone = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
    >>> nearest({**alone, "PMI_SIZE": "2", "PMI_RANK": "1"}).name
    'MPICH or Intel MPI'
    """
    started = {launcher: launcher.layout(variables) for launcher in LAUNCHERS if launcher.started(variables)}
    several = [launcher for launcher, found in started.items() if found.num_processes > 1]
    chosen = next(iter(started if TORCHRUN in started else several or started), None)
    for other in several:
        if chosen is not None and not _agree(chosen, other, started, variables):
            raise createPoptorchError(
                f"Two launchers speak to this process: {chosen.said(variables)}, and {other.said(variables)}. Start "
                f"the job with one of them, or take the variables of the other one away, as in 'env -u "
                f"{other.num_processes} -u {other.process_id} ...' or 'env -u {chosen.num_processes} -u "
                f"{chosen.process_id} ...'."
            )
    return chosen


def _agree(
    chosen: Launcher, other: Launcher, layouts: Mapping[Launcher, JobLayout], variables: Mapping[str, str]
) -> bool:
    """Whether what another launcher says can be true as well."""
    if layouts[chosen] == layouts[other] or (chosen, other) == (TORCHRUN, BY_HAND):
        return True  # the last two read the same variables
    if layouts[other] == layouts.get(SLURM):
        return True  # steps of Slurm start the launchers of all hosts, and srun says so as MPICH does, too
    # mpirun may start torchrun, once on each host.
    agents = integer("GROUP_WORLD_SIZE", 1, variables)
    return chosen is TORCHRUN and agents == layouts[other].num_processes


def layout(variables: Mapping[str, str] | None = None) -> JobLayout:
    """Which of how many processes this is; process 0 of 1 where no launcher says otherwise.

    >>> layout({})
    JobLayout(process_id=0, num_processes=1)
    """
    known = os.environ if variables is None else variables
    launcher = nearest(known)
    if launcher is not None:
        return launcher.layout(known)
    # Half of the original's pair is enough, as it was there: the other half has its default.
    return JobLayout(integer(WORLD_RANK, 0, known), integer(WORLD_SIZE, 1, known))


def all_are_here(num_processes: int) -> bool:
    """Whether a launcher has started all processes of the job on this host."""
    return nearest(os.environ) in (TORCHRUN, BY_HAND) and integer("LOCAL_WORLD_SIZE", 0) == num_processes


def master() -> tuple[str, int] | None:
    """Where torchrun, or the user, wants processes to meet."""
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        return None
    return os.environ["MASTER_ADDR"], integer("MASTER_PORT", 0)


def master_is_running() -> bool:
    """Whether the launcher itself listens there, so that no process has to."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def served_store() -> str | None:
    """Where PopRun listens for the processes of this job; ``None`` if it did not start this process."""
    job, _, address = os.environ.get(SERVED_STORE, "").partition(" ")
    # A program of its job may start another job, which inherits the variable.
    return address if address and job == os.environ.get("TORCHELASTIC_RUN_ID") else None


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
    launcher = nearest(os.environ)
    found = [os.environ[name] for name in launcher.job if name in os.environ] if launcher else []
    if found:
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
