"""Two hosts on one machine: each has its own network, process numbers and name, and files of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_NETWORK = "10.213.{}"
_STARTED = 'echo "$0" > /proc/sys/kernel/hostname; "$@"; exit $?'
"""What the first process of a host does. It is not the command itself, because it cannot be killed from there."""


@dataclass(frozen=True)
class Host:
    """A host: how to start a command on it, and what is different there."""

    name: str
    address: str
    folder: Path

    @property
    def prefix(self) -> list[str]:
        """What comes before a command that is to run there."""
        apart = ["unshare", "--fork", "--pid", "--kill-child", "--mount-proc", "--uts"]
        return ["ip", "netns", "exec", self.name, *apart, "sh", "-c", _STARTED, self.name]

    @property
    def variables(self) -> dict[str, str]:
        """Where programs keep their files there."""
        return {"TMPDIR": str(self.folder), "HOME": str(self.folder), "POPTORCH_DEVICES_DIR": str(self.folder / "ipus")}


def why_not() -> str:
    """Why there can be no hosts here; empty if there can be."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return "networks of one's own need root, iproute2 and util-linux"
    tried = subprocess.run(["unshare", "--net", "--pid", "--fork", "--uts", "true"], capture_output=True, check=False)
    return tried.stderr.decode()


_letters = itertools.cycle("abcdefghijklmnopqrstuvwxyz")


@contextmanager
def connected(folder: Path, count: int = 2) -> Iterator[list[Host]]:
    """Hosts with a network between them."""
    mark = f"pt{os.getpid() % 100000}{next(_letters)}"  # names of links have at most fifteen characters
    subnet = _NETWORK.format(os.getpid() % 256)
    hosts = [Host(f"{mark}h{i}", f"{subnet}.{i + 1}", folder / f"host{i}") for i in range(count)]
    try:
        _ip("link", "add", mark, "type", "bridge")
        _ip("link", "set", mark, "up")
        for i, host in enumerate(hosts):
            host.folder.mkdir()
            _ip("netns", "add", host.name)
            _ip("link", "add", f"{mark}v{i}", "type", "veth", "peer", "name", "eth0", "netns", host.name)
            _ip("link", "set", f"{mark}v{i}", "master", mark, "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield hosts
    finally:
        for i, host in enumerate(hosts):
            # The system deletes the links of a network that is gone in its own time.
            subprocess.run(["ip", "link", "delete", f"{mark}v{i}"], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "delete", host.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", mark], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
