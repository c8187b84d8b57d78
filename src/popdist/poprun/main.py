"""What happens between the command line and the exit code."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from popdist.poprun import hosts, job, mpi, partition, topology
from popdist.poprun.command_line import USAGE, export, help_text, parse
from popdist.poprun.errors import PoprunError, UsageError
from popdist.poprun.layout import Layout, layout_of
from popdist.poprun.log import Log
from popdist.poprun.meeting import Meeting
from popdist.poprun.settings import Settings

_UNDERSTOOD = (
    "--tag-output", "-tag-output", "--allow-run-as-root", "--oversubscribe", "--output-filename", "--bind-to",
)  # fmt: skip
"""Arguments for ``mpirun`` that the launcher of one host follows, or that ask for what it does anyway."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job; returns the exit code."""
    log = Log()
    try:
        line = parse(sys.argv[1:] if arguments is None else arguments)
        settings = line.settings
        log = Log(settings.verbose, settings.vv)
        if settings.help:
            print(help_text())
            return 0
        if settings.version:
            print(version_text(settings.version_format))
            return 0
        layout = layout_of(settings)
        if not line.program:
            raise UsageError("There is no program to run.")
        if settings.export_config is not None:
            export(settings, Path(settings.export_config))
        return _run(settings, layout, line.program, log)
    except UsageError as error:
        log.error(str(error))
        print(f"{USAGE}\nSee poprun --help.", file=sys.stderr)
        return 1
    except PoprunError as error:
        log.error(str(error))
        return 1


def _run(settings: Settings, layout: Layout, program: Sequence[str], log: Log) -> int:
    with_mpi = _needs_mpi(layout, log)
    for name in ("synchronise_python_venv", "synchronise_poplar_sdk", "distribute_ssh_key"):
        if getattr(settings, name):
            _refuse_copies(name, layout)
    if settings.host_subnet is not None and not layout.hosts:
        log.debug("--host-subnet is ignored: no hosts are given")
    if settings.vipu_cluster is not None:
        log.warning("--vipu-cluster is deprecated: use --vipu-allocation")
    placement = partition.place(settings, layout, log)
    try:
        if settings.print_topology or settings.vv:
            print(topology.table(layout), flush=True)
        variables = {
            instance: {**layout.variables(instance), **placement.variables(instance, layout), **_common(settings)}
            for instance in range(layout.instances)
        }
        run = _run_with_mpi if with_mpi else _run_here
        code = run(settings, layout, variables, program, log)
        log.info(f"The job ended with exit code {code}")
        return code
    finally:
        placement.release()


def _run_here(
    settings: Settings, layout: Layout, variables: dict[int, dict[str, str]], program: Sequence[str], log: Log
) -> int:
    from popdist.poprun import local
    from popdist.poprun.output import Outputs

    others = [word for word in settings.mpi_global_args if word.startswith("-")]
    ignored = [word for word in others if word.partition("=")[0] not in _UNDERSTOOD]
    if ignored:
        log.info(f"Without other hosts there is no mpirun; these of its arguments have no effect: {' '.join(ignored)}")
    with Meeting("127.0.0.1") as meeting:
        shared = job.job_variables(meeting, layout)
        # Pipes are not terminals: without this, Python programs would print when they end.
        shared[job.SECRET] = meeting.secret
        shared["PYTHONUNBUFFERED"] = os.environ.get("PYTHONUNBUFFERED") or "1"
        complete = {}
        for instance, own in variables.items():
            asked, rest = job.exported(mpi.local_arguments(settings, instance))
            if rest and not instance:
                log.info(f"Without other hosts there is no mpirun; these of its arguments have no effect: {rest}")
            ranks = {**job.rank_variables(instance, layout), **job.open_mpi_variables(instance, layout)}
            complete[instance] = {**shared, **ranks, **own, **asked}
        outputs = Outputs(
            layout.instances, settings.only_output_from_instance, local.output_folder(settings.mpi_global_args)
        )
        return local.run(program, complete, outputs, log, numa=settings.binds_to_numa_nodes())


def _run_with_mpi(
    settings: Settings, layout: Layout, variables: dict[int, dict[str, str]], program: Sequence[str], log: Log
) -> int:
    with Meeting(mpi.own_address(layout)) as meeting:
        shared = job.job_variables(meeting, layout)
        shared |= {name: os.environ[name] for name in job.FORWARDED if name in os.environ}
        complete = {
            instance: {**shared, **job.rank_variables(instance, layout), **own} for instance, own in variables.items()
        }
        line = mpi.command(settings, layout, complete, program, forwarded=(job.SECRET,))
        return mpi.run(line, log, {job.SECRET: meeting.secret})


def _common(settings: Settings) -> dict[str, str]:
    cache = settings.executable_cache_path
    found = {} if cache is None else {"POPDIST_EXECUTABLE_CACHE_PATH": os.path.abspath(cache)}
    return {**found, **job.horovod_variables(os.environ)}


def _needs_mpi(layout: Layout, log: Log) -> bool:
    """Whether ``mpirun`` starts the instances: on other hosts, and for programs that use MPI themselves."""
    if layout.hosts:
        if mpi.is_installed():
            return True
        others = [host for host in layout.hosts if not hosts.is_this_one(host)]
        if others:
            raise PoprunError(
                f"Instances on other hosts ({', '.join(others)}) need Open MPI, and there is no mpirun on the path. "
                "Install it on all hosts (package openmpi-bin), or leave out --host."
            )
        return False
    users = [name for name in ("mpi4py", "horovod") if importlib.util.find_spec(name) is not None]
    if users and mpi.is_installed() and layout.instances > 1:
        log.info(f"{' and '.join(users)} found, which need MPI: mpirun starts the instances")
        return True
    return False


def _refuse_copies(name: str, layout: Layout) -> None:
    if any(not hosts.is_this_one(host) for host in layout.hosts):
        raise PoprunError(
            f"--{name.replace('_', '-')} is not possible: nothing is copied to other hosts. All hosts need the same "
            "paths; share them, or copy them yourself."
        )


def version_text(style: str) -> str:
    """The version, and on request those of what PopRun depends on.

    >>> version_text("text").startswith("poprun ")
    True
    """
    from poptorch import __version__  # here, because it imports torch

    versions = {"poprun": __version__}
    if style == "text":
        return f"poprun {versions['poprun']}"
    versions |= {"python": platform.python_version(), "torch": _version("torch"), "numpy": _version("numpy")}
    if style == "full-json":
        return json.dumps(versions)
    return "\n".join(f"{name} {version}" for name, version in versions.items())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
