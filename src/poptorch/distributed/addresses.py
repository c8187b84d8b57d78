"""At which address the other processes of a job reach this one.

Left to itself, gloo takes the address of the host's name. On many hosts that is one of the loopback network, where no
other host can reach it. Here, a process takes the address by which it reaches the place where the processes meet.

>>> _route_to("127.0.0.1")
'127.0.0.1'
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from poptorch import launchers
from poptorch._logging import warn_once
from poptorch.distributed.peers import Peer

ADVICE = (
    f"Can the hosts reach each other at these addresses? {launchers.INTERFACES} names the network interface to use."
)

_LOOPBACK = "127.0.0.1"
_ANY_PORT = 9  # nothing is sent


_ANYWHERE = "0.0.0.0"
_BACKLOG = 1024


def is_of_this_host_only(host: str) -> bool:
    """Whether an address, or a name, means this host on every host.

    >>> is_of_this_host_only("localhost"), is_of_this_host_only("127.0.0.1"), is_of_this_host_only("10.0.0.1")
    (True, True, False)
    """
    try:
        return _is_loopback(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address of this host, and at no other.

    Names of this host may stand for a loopback address here, and for another one elsewhere; and hosts may be known by
    addresses that are not their own. In these cases it listens at all addresses.
    """
    family, address = _first_address(host, port)
    if _is_loopback(address) and not is_of_this_host_only(host):
        family, address = socket.AF_INET, _ANYWHERE
    try:
        return _bound(family, address, port)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        warn_once(
            ("not our address", host),
            f"{host} is no address of this host, on which process 0 runs: it listens at all addresses instead.",
        )
        return _bound(socket.AF_INET, _ANYWHERE, port)


def reachable(own: Peer, peers: Sequence[Peer]) -> str:
    """The address of a process, as the others reach it.

    The process that serves the store may know itself by a loopback address only. The others tell where they are.
    """
    if not _is_loopback(own.address):
        return own.address
    elsewhere = (peer.address for peer in peers if not _is_loopback(peer.address))
    return next(map(_route_to, elsewhere), own.address)


def gloo_options(address: str, seconds: float) -> Any:
    """What a group of gloo has to know: where this process listens, and how long it waits."""
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=seconds)
    names = launchers.network_interfaces()
    device = dist.ProcessGroupGloo.create_device
    options._devices = [device(interface=name) for name in names] or [device(hostname=address)]
    return options


def _route_to(host: str) -> str:
    """The address from which this host speaks to another one."""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    return _LOOPBACK


def _first_address(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, str(address[0])


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
