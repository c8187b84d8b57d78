"""Starting the instances of several hosts, with Open MPI's ``mpirun``."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import BinaryIO

from popdist.poprun import hosts, output
from popdist.poprun.job import wrapped
from popdist.poprun.layout import Layout
from popdist.poprun.log import Log
from popdist.poprun.settings import Settings

KILL_SECONDS = 10
"""How long ``mpirun`` may take to end the job after a signal."""


def is_installed() -> bool:
    """Whether there is an ``mpirun``."""
    return shutil.which("mpirun") is not None


def command(
    settings: Settings, layout: Layout, variables: Mapping[int, Mapping[str, str]], program: Sequence[str],
    forwarded: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """The complete ``mpirun`` line: global arguments once, and a section for each instance.

    Variables that are ``forwarded`` come from the environment of ``mpirun``: all users can read command lines.

    >>> made = command(Settings(), Layout(2, 2, 1, ("a", "b")), {0: {"A": "0"}, 1: {"A": "1"}}, ["hostname"])
    >>> made[:4], made.count(":"), made[-1]
    (['mpirun', '--bind-to', 'none', '--tag-output'], 1, 'hostname')
    """
    line = ["mpirun", "--bind-to", "none", "--tag-output", "--allow-run-as-root", "--oversubscribe"]
    if settings.host_subnet is not None:
        for network in ("oob_tcp_if_include", "btl_tcp_if_include"):
            line += ["--mca", network, settings.host_subnet]
    line += settings.mpi_global_args
    numa = settings.binds_to_numa_nodes() and layout.instances_per_host > 1
    for instance in range(layout.instances):
        line += [":"] if instance else []
        line += ["-np", "1"]
        host = layout.host_of(instance)
        line += ["--host", f"{host}:{layout.instances_per_host}"] if host is not None else []
        for name, value in variables[instance].items():
            line += ["-x", f"{name}={value}"]
        for name in forwarded:
            line += ["-x", name]
        line += local_arguments(settings, instance)
        node = instance % layout.instances_per_host if numa else None
        line += wrapped(program, parent=None, node=node, prints=settings.only_output_from_instance in (None, instance))
    return line


def local_arguments(settings: Settings, instance: int) -> list[str]:
    """The user's arguments for the section of one instance."""
    own = [words for number, words in settings.instance_mpi_local_args if number == instance]
    return [*settings.mpi_local_args, *(word for words in own for word in words)]


def own_address(layout: Layout) -> str:
    """The address at which the hosts of the job reach this one."""
    others = [host for host in layout.hosts if not hosts.is_this_one(host)]
    if not others:
        return "localhost"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((others[0], 9))  # sends nothing: the kernel only chooses the way
        except OSError:
            return socket.getfqdn()
        return str(probe.getsockname()[0])


def run(line: Sequence[str], log: Log, variables: Mapping[str, str]) -> int:
    """Run ``mpirun`` with more variables; returns its exit code, which is that of the first instance that failed."""
    log.debug(f"Running: {shlex.join(line)}")
    # Not wrapped by us alone: if we are killed, mpirun gets the chance to end the instances of other hosts.
    complete = wrapped(line, parent=None, number=signal.SIGTERM)
    stopped: list[signal.Signals] = []
    with subprocess.Popen(
        complete,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **variables},
    ) as process:
        log.info(f"mpirun is process {process.pid}")

        def pass_on(number: int, frame: FrameType | None) -> None:
            stopped.append(signal.Signals(number))
            process.send_signal(signal.SIGKILL if len(stopped) > 1 else number)

        before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            readers = [
                threading.Thread(target=_pump, args=(stream, name), daemon=True)
                for stream, name in zip((process.stdout, process.stderr), output.STREAMS, strict=True)
            ]
            for reader in readers:
                reader.start()
            code = _wait(process, stopped)
            for reader in readers:
                reader.join(KILL_SECONDS)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if stopped:
        return 128 + stopped[0]
    return 128 - code if code < 0 else code


def _wait(process: subprocess.Popen[bytes], stopped: Sequence[signal.Signals]) -> int:
    while not stopped:
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    try:
        return process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _pump(stream: BinaryIO, name: str) -> None:
    for line in stream:
        output.show(name, line)
