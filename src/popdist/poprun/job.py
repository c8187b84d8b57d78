"""What both launchers give to instances: where these meet, what their environment is, and how they end."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from popdist.poprun import instance as instance_program
from popdist.poprun.errors import PoprunError
from popdist.poprun.layout import Layout
from popdist.poprun.meeting import Meeting

HOROVOD_SHIM = "POPDIST_HOROVOD_SHIM"
"""0 in PopRun's environment: instances find no stand-in for Horovod."""

SECRET = "POPTORCH_JOB_SECRET"
"""What instances prove to each other that they know. It is in no command line, which all users of a host can read."""

STORE = "POPDIST_STORE"
"""Where instances meet."""

FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""What instances on other hosts get from PopRun's own environment, too."""


def job_variables(meeting: Meeting, layout: Layout) -> dict[str, str]:
    """What torch's launcher tells all processes of a job, and where they meet."""
    return {
        STORE: meeting.store,
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.torch_port),
        "WORLD_SIZE": str(layout.instances),
        "LOCAL_WORLD_SIZE": str(layout.instances_per_host),
        "GROUP_WORLD_SIZE": str(max(1, len(layout.hosts))),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": meeting.name,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or _threads(layout),
    }


def rank_variables(instance: int, layout: Layout) -> dict[str, str]:
    """What torch's launcher tells one process."""
    return {
        "RANK": str(instance),
        "LOCAL_RANK": str(instance % layout.instances_per_host),
        "GROUP_RANK": str(instance // layout.instances_per_host),
    }


def open_mpi_variables(instance: int, layout: Layout) -> dict[str, str]:
    """What Open MPI tells one process, for programs that read it, where no ``mpirun`` runs."""
    local = str(instance % layout.instances_per_host)
    return {
        "OMPI_COMM_WORLD_SIZE": str(layout.instances),
        "OMPI_COMM_WORLD_RANK": str(instance),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(layout.instances_per_host),
        "OMPI_COMM_WORLD_LOCAL_RANK": local,
        "OMPI_COMM_WORLD_NODE_RANK": local,
    }


def exported(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that ``-x`` names among arguments for ``mpirun``, and the other arguments.

    >>> exported(["-x", "A=1", "--report-bindings", "-x", "NO_SUCH_VARIABLE"])
    ({'A': '1'}, ['--report-bindings'])
    """
    variables, others = {}, []
    words = iter(arguments)
    for word in words:
        if word != "-x":
            others.append(word)
            continue
        given = next(words, None)
        if given is None:
            raise PoprunError("-x needs the name of a variable: '-x NAME' or '-x NAME=VALUE'.")
        name, equals, value = given.partition("=")
        if equals:
            variables[name] = value
        elif name in os.environ:
            variables[name] = os.environ[name]
    return variables, others


def horovod_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What makes ``import horovod.torch`` find the stand-in, if there is no Horovod."""
    if environment.get(HOROVOD_SHIM) == "0" or importlib.util.find_spec("horovod") is not None:
        return {}
    folder = str(Path(__file__).resolve().parent.parent / "shims")
    known = environment.get("PYTHONPATH")
    return {"PYTHONPATH": f"{known}{os.pathsep}{folder}" if known else folder, HOROVOD_SHIM: "1"}


def wrapped(
    program: Sequence[str],
    *,
    parent: int | None,
    node: int | None = None,
    reads: bool = True,
    prints: bool = True,
    number: int = signal.SIGKILL,
) -> tuple[str, ...]:
    """The command for a program that ends with its parent; see :mod:`popdist.poprun.instance`."""
    return (
        sys.executable, "-I", "-S", instance_program.__file__,
        "-" if parent is None else str(parent), str(int(number)), "-" if node is None else str(node),
        ("" if reads else "i") + ("" if prints else "o") or "-", "--", *program,
    )  # fmt: skip


def _threads(layout: Layout) -> str:
    """A fair share of the cores, as instances would otherwise all start threads for all cores."""
    return str(max(1, len(os.sched_getaffinity(0)) // layout.instances_per_host))
