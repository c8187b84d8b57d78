"""``gc-info``: which devices there are, and what is known about one of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from poptorch._version import __version__
from poptorch.cli.devices import as_data, device_data
from poptorch.cli.running import ended
from poptorch.devices.listing import FREE, Listed, board_of, devices
from poptorch.devices.system import System, system


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gc-info", description="Show the virtual IPUs of this machine. POPTORCH_SYSTEM says which there are."
    )
    parser.add_argument("-d", "--device-id", type=int, metavar="N", help="the device that the other options are about")
    parser.add_argument("--json", action="store_true", help="as JSON: -l and -i")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-l", "--list-devices", action="store_true", help="one line for each device")
    what.add_argument("-a", "--all-devices", action="store_true", help="the same")
    what.add_argument("-i", "--device-info", action="store_true", help="everything about a device")
    what.add_argument("--ipu-count", action="store_true", help="how many IPUs the system, or the device, has")
    what.add_argument("--ipu-arch", action="store_true", help="the architecture: ipu1, ipu2 or ipu21")
    what.add_argument("--tile-clock-speed", action="store_true", help="the clock of the tiles")
    what.add_argument("--chip-id", action="store_true", help="the chips of a free device")
    what.add_argument("--tile-overview", action="store_true", help="the tiles of a free device")
    what.add_argument("--tile-status", type=int, metavar="T", help="refused: virtual tiles have no state to look at")
    what.add_argument("--dump-mem", action="store_true", help="refused: virtual tiles have no memory to look at")
    parser.add_argument("--all-partitions", action="store_true", help="there is one partition, the whole system")
    parser.add_argument("-c", "--context", metavar="NAME", help="with --tile-status")
    parser.add_argument("-r", "--register", metavar="NAME", help="with --tile-status")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    chosen = _parser().parse_args(arguments)
    return ended(lambda: _run(chosen, system()))


def _run(chosen: argparse.Namespace, machine: System | None) -> int:
    if chosen.list_devices or chosen.all_devices:
        print(json.dumps(as_data(machine), indent=1) if chosen.json else listing(machine))
        return 0
    if chosen.ipu_count and chosen.device_id is None:
        print(0 if machine is None else machine.ipus)
        return 0
    if machine is None:
        return _failed("No IPU detected in the system (POPTORCH_SYSTEM=none)")
    if chosen.tile_status is not None or chosen.dump_mem:
        return _failed("The tiles of virtual IPUs have no state or memory of their own that could be shown")
    number, known = chosen.device_id or 0, devices(machine)
    if not 0 <= number < len(known):
        return _failed(f"There is no device Id {number}: {machine.name} has the ids 0 to {len(known) - 1}")
    return _about(chosen, machine, known[number])


def _about(chosen: argparse.Namespace, machine: System, device: Listed) -> int:
    if chosen.ipu_count:
        print(device.group.size)
    elif chosen.ipu_arch:
        print(machine.target)
    elif chosen.tile_clock_speed:
        print(f"{device.board.clock_mhz} MHz")
    elif chosen.device_info:
        known = information(machine, device)
        lines = "\n".join(f"{key}: {text}" for key, text in known.items())
        print(json.dumps(known, indent=1) if chosen.json else lines)
    elif device.state != FREE:  # the rest needs a device that no program uses
        owners = "; ".join(map(str, device.owners))
        return _failed(f"Device Id {device.device_id} is {device.state}, by {owners}")
    elif chosen.chip_id:
        print("\n".join(f"IPU {ipu}: {ipu:#06x}" for ipu in device.group.ipus))
    else:
        tiles = f"{machine.tiles} tiles of {machine.memory_per_tile // 1024} KiB, all idle"
        print("\n".join(f"IPU {ipu}: {tiles}" for ipu in device.group.ipus))
    return 0


def _failed(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


def listing(machine: System | None) -> str:
    """All devices; those of several IPUs with their members."""
    lines = ["Graphcore device listing:", ""]
    if machine is None:
        return "\n".join([*lines, "No IPU detected in the system"])
    known = devices(machine)
    lines.append(f"Partition: {machine.name} [active]")
    for device in known:
        if device.group.size == 1:
            lines.append(f"-+- Id: [{device.device_id}], target: [{device.kind}], {_place(device)}")
            continue
        lines.append(f"-+- Id: [{device.device_id}], target: [{device.kind}]")
        lines += [f" |--- Id: [{ipu}], DNC Id: [{n}], {_place(known[ipu])}" for n, ipu in enumerate(device.group.ipus)]
    return "\n".join(lines)


def _place(device: Listed) -> str:
    """Which board, and where on it."""
    number = f"IPU#: [{device.number_on_board}]"
    if device.board.bus == "PCIe":
        return f"PCI Domain: [{device.board_number}], {number}"
    return f"IPU-M host: [{device.serial}], {number}"


def information(machine: System, device: Listed) -> dict[str, Any]:
    """The attributes of a device. What virtual IPUs have nothing to say about is ``N/A``."""
    owner, board = (device.owners[0] if device.owners else None), board_of(machine)
    fabric = board.bus == "Fabric"
    return {
        "id": str(device.device_id),
        "target": device.kind,
        "state": device.state,
        "average board temp": "N/A",
        "average die temp": "N/A",
        "board ipu index": str(device.number_on_board) if device.group.size == 1 else "N/A",
        "board serial number": device.serial,
        "board type": board.kind,
        "clock": f"{board.clock_mhz}MHz",
        "driver version": __version__,
        "firmware version": "N/A",
        "ipu architecture": machine.target,
        "ipu error state": "no errors",
        "ipu power": "N/A",
        "ipu utilisation": "N/A",
        "ipu utilisation (session)": "N/A",
        "ipuof host": device.serial if fabric else "N/A",
        "ipuof partition id": machine.name if fabric else "N/A",
        "ipuof routing id": "0" if fabric else "N/A",
        "ipuof routing type": "DNC" if fabric else "N/A",
        "link speed": "N/A",
        "link width": "N/A",
        "numa node": "0",
        "number of replicas": "1",
        "number of ipus": str(device.group.size),
        "partition sync type": "N/A",
        "reconfigurable partition": "1" if fabric else "0",
        "remote buffers supported": "1",
        "total board power": "N/A",
        "user executable": "N/A" if owner is None else owner.command,
        "user name": "N/A" if owner is None else owner.user or "N/A",
        "user process id": "N/A" if owner is None else str(owner.pid),
        **({"ipus": device_data(device)["ipus"]} if device.group.size > 1 else {}),
    }
