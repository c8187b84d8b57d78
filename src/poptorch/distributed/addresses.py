"""At which address the other processes of a job reach this one.

Left to itself, gloo takes the address of the host's name. On many hosts that is one of the loopback network, where no
other host can reach it. Here, a process takes the address by which it reaches the place where the processes meet.

>>> _route_to("127.0.0.1")
'127.0.0.1'
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from poptorch import launchers
from poptorch.distributed.peers import Peer

ADVICE = (
    f"Can the hosts reach each other at these addresses? {launchers.INTERFACES} names the network interface to use."
)

_LOOPBACK = "127.0.0.1"
_ANY_PORT = 9  # nothing is sent


def towards(store: Store) -> str:
    """The address of this host in the network that leads to the store where processes meet."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return _route_to(store.host) if isinstance(store, TCPStore) else _LOOPBACK


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


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
