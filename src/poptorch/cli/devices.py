"""``poptorch devices``: the virtual IPUs of this machine, and who has or awaits them."""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

from poptorch.devices import attachment
from poptorch.devices.listing import Listed, devices
from poptorch.devices.sharing import Owner, directory, local_time
from poptorch.devices.system import System, system
from poptorch.figures import columns


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("devices", help="list virtual IPUs: ids, kind, state, owner, since")
    parser.add_argument("--groups", action="store_true", help="also the devices of several IPUs")
    parser.add_argument("--json", action="store_true", help="all devices, and the programs that wait, as JSON")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    machine = system()
    if chosen.json:
        print(json.dumps(as_data(machine), indent=1))
        return 0
    if machine is None:
        print("This machine has no IPUs: POPTORCH_SYSTEM=none")
        return 0
    print(f"{machine.name}: {machine.ipus} {machine.architecture} IPUs, shared through {directory()}")
    shown = [device for device in devices(machine) if chosen.groups or device.group.size == 1]
    rows = [("Id", "kind", "state", "owner")]
    for key, run in itertools.groupby(shown, key=lambda device: (device.kind, device.state, device.owners)):
        alike = list(run)
        rows.append((_ids(alike), key[0], key[1], "; ".join(map(_owner, key[2]))))
    print(*columns(rows, ">", (9, 9, 13)), sep="\n")
    for wish in attachment.wishes():
        print(f"process {wish.pid} waits for {wish.ipus} IPU(s), for {wish.seconds:.0f} s")
    return 0


def _ids(alike: list[Listed]) -> str:
    first, last = alike[0].device_id, alike[-1].device_id
    return str(first) if first == last else f"{first}-{last}"


def _owner(owner: Owner) -> str:
    user = "" if owner.user is None else f", user {owner.user}"
    since = "" if owner.since is None else f", since {local_time(owner.since)}"
    return f"{owner.pid or 'other container'}: {owner.command}{user}{since}"


def as_data(machine: System | None) -> dict[str, Any]:
    """Everything that is known about the devices of this machine, for JSON."""
    if machine is None:
        return {"system": None, "ipus": 0, "devices": [], "waiting": []}
    return {
        "system": machine.name,
        "architecture": machine.architecture,
        "ipus": machine.ipus,
        "directory": directory(),
        "devices": [device_data(device) for device in devices(machine)],
        "waiting": [
            {"pid": wish.pid, "ipus": wish.ipus, "seconds": round(wish.seconds, 3)} for wish in attachment.wishes()
        ],
    }


def device_data(device: Listed) -> dict[str, Any]:
    """What is known about a device, for JSON."""
    return {
        "id": device.device_id,
        "kind": device.kind,
        "ipus": list(device.group.ipus),
        "state": device.state,
        "owners": [owner_data(owner) for owner in device.owners],
    }


def owner_data(owner: Owner) -> dict[str, Any]:
    """What is known about an owner, for JSON."""
    return {
        "pid": owner.pid,
        "command": owner.command,
        "user": owner.user,
        "since": owner.since,
        "device": owner.device_id,
    }
