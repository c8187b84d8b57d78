"""Run a command once in each of several processes of a job, each on a host of its own.

    python bench/hosts.py 4 program.py argument...

A host is a network namespace with its own name and address; a bridge joins them (``10.77.0.1`` is ``host0``). They
share this machine's processors, memory and files. Making them needs Linux, root and the commands ``unshare`` and
``ip``. Where that is missing, or with ``--loopback``, all processes are on this host.

The processes find each other as with torchrun: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``. What
process 0 prints is printed. The first failure ends all, and nothing of the hosts is left afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

NETWORK = "10.77.0"
PORT = 29555


def namespaces_work() -> bool:
    """Whether this process may make hosts of its own."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        return False
    commands = "mount -t tmpfs none /run && ip link add bridge type bridge && ip netns add host"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", commands],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


def _build(hosts: int) -> None:
    """In namespaces for network and mounts: a bridge, and a namespace with a cable to it for each host."""

    def do(*command: str) -> None:
        subprocess.run(command, check=True)

    do("mount", "-t", "tmpfs", "none", "/run")  # the names of network namespaces are files in /run/netns
    do("ip", "link", "set", "lo", "up")
    do("ip", "link", "add", "bridge", "type", "bridge")
    do("ip", "link", "set", "bridge", "up")
    names = ["127.0.0.1 localhost"]
    for i in range(hosts):
        do("ip", "netns", "add", f"host{i}")
        do("ip", "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", f"host{i}")
        do("ip", "link", "set", f"port{i}", "master", "bridge", "up")
        do("ip", "-n", f"host{i}", "addr", "add", f"{NETWORK}.{i + 1}/24", "dev", "eth0")
        do("ip", "-n", f"host{i}", "link", "set", "eth0", "up")
        do("ip", "-n", f"host{i}", "link", "set", "lo", "up")
        names.append(f"{NETWORK}.{i + 1} host{i}")
    Path("/run/hosts").write_text("\n".join(names) + "\n")
    do("mount", "--bind", "/run/hosts", "/etc/hosts")


def _on_host(host: int, command: Sequence[str]) -> list[str]:
    script = f'hostname host{host} && exec "$@"'
    return ["ip", "netns", "exec", f"host{host}", "unshare", "--uts", "sh", "-c", script, "sh", *command]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(processes: int, command: Sequence[str], apart: bool) -> int:
    """Start the processes, and wait for all; the exit code of the first that fails, or 0."""
    if apart:
        _build(processes)
        address, port = f"{NETWORK}.1", PORT
    else:
        address, port = "127.0.0.1", _free_port()
    with tempfile.TemporaryDirectory(prefix="poptorch-bench-devices-") as devices:
        started = []
        for rank in range(processes):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_RANK": "0" if apart else str(rank),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "POPTORCH_DEVICES_DIR": devices,
            }
            whole = _on_host(rank, command) if apart else list(command)
            output = None if rank == 0 else subprocess.DEVNULL
            started.append(subprocess.Popen(whole, env={**os.environ, **variables}, stdout=output))
        return _first_failure(started)


def _first_failure(started: Sequence[subprocess.Popen[bytes]]) -> int:
    try:
        waiting = list(started)
        while waiting:
            failed = [process.returncode for process in waiting if process.poll()]
            if failed:
                return int(failed[0])
            waiting = [process for process in waiting if process.returncode is None]
            time.sleep(0.1)
        return 0
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> int:
    """Make the hosts by starting this program again in namespaces of its own, which end with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loopback", action="store_true", help="all processes on this host")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("processes", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a Python program and its arguments")
    chosen = parser.parse_args()
    if chosen.inside or chosen.loopback or not namespaces_work():
        return run(chosen.processes, [sys.executable, *chosen.command], chosen.inside)
    again = [sys.executable, __file__, "--inside", str(chosen.processes), *chosen.command]
    return os.execvp("unshare", ["unshare", "--net", "--mount", "--propagation", "private", *again])


if __name__ == "__main__":
    sys.exit(main())
