"""``gc-monitor``: the boards of the system, and the processes that use its IPUs."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from poptorch._version import __version__
from poptorch.cli.devices import owner_data
from poptorch.cli.running import ended
from poptorch.devices.listing import Listed, devices
from poptorch.devices.sharing import Owner
from poptorch.devices.system import System, system
from poptorch.figures import age, boxed

_CARD_COLUMNS = ("IPU-M", "Serial", "IPU-M SW", "Server version", "ICU FW", "Type", "ID", "IPU#", "Routing")
_PROCESS_COLUMNS = ("PID", "Command", "Time", "User", "ID", "Clock", "Temp", "Board temp", "Power")
_LONGEST_COMMAND = 40
_UNKNOWN = "N/A"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gc-monitor", description="Show the processes that use the virtual IPUs of this machine."
    )
    parser.add_argument("--no-card-info", action="store_true", help="without the table of boards")
    parser.add_argument("--all-partitions", action="store_true", help="there is one partition, the whole system")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-j", "--json", action="store_true", help="as JSON, a card for each board")
    form.add_argument("--csv", action="store_true", help="a line for each IPU")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    chosen = _parser().parse_args(arguments)
    return ended(lambda: _run(chosen))


def _run(chosen: argparse.Namespace) -> int:
    machine = system()
    singles = [] if machine is None else [device for device in devices(machine) if device.group.size == 1]
    if chosen.json:
        print(json.dumps({"cards": cards(singles)}, indent=1))
    elif chosen.csv:
        _print_csv(singles)
    else:
        # What people look for first: who has the IPUs. Boards without a process come last.
        print(_process_tables(machine, singles))
        if not chosen.no_card_info:
            print(_card_table(machine, singles))
    return 0


def cards(singles: Sequence[Listed]) -> list[dict[str, Any]]:
    """One entry for each board, with its IPUs."""
    found: dict[int, dict[str, Any]] = {}
    for device in singles:
        board = device.board
        card = found.setdefault(
            device.board_number, {"serial": device.serial, "type": board.kind, "bus": board.bus, "ipus": []}
        )
        owner = device.owners[0] if device.owners else None
        card["ipus"].append(
            {
                "id": device.device_id,
                "ipu": device.number_on_board,
                "clock": f"{board.clock_mhz}MHz",
                "state": device.state,
                "owner": None if owner is None else owner_data(owner),
            }
        )
    return list(found.values())


def _print_csv(singles: Sequence[Listed]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(("id", "serial", "type", "ipu", "state", "pid", "command", "user", "since"))
    for device in singles:
        row = (device.device_id, device.serial, device.board.kind, device.number_on_board, device.state)
        owner = device.owners[0] if device.owners else None
        told = ("", "", "", "") if owner is None else (owner.pid, owner.command, owner.user or "", owner.since or "")
        writer.writerow((*row, *told))


def _card_table(machine: System | None, singles: Sequence[Listed]) -> str:
    if machine is None:
        return boxed("No partition: POPTORCH_SYSTEM=none", _CARD_COLUMNS, [])
    boards: dict[int, list[tuple[str, ...]]] = {}
    for device in singles:
        rows = boards.setdefault(device.board_number, [])
        names = ("", "", "", "", "") if rows else (device.serial, device.serial, __version__, __version__, _UNKNOWN)
        kind = "" if rows else device.board.kind
        rows.append((*names, kind, str(device.device_id), str(device.number_on_board), "DNC"))
    title = f"{machine.name} [active] has {machine.ipus} reconfigurable IPUs"
    return boxed(title, _CARD_COLUMNS, list(boards.values()))


def _process_tables(machine: System | None, singles: Sequence[Listed]) -> str:
    """One table for the processes that can be seen from here, one for those of other containers."""
    name = "the system" if machine is None else f"partition {machine.name}"
    here = [(device, owner) for device in singles for owner in device.owners if owner.pid]
    elsewhere = [(device, owner) for device in singles for owner in device.owners if not owner.pid]
    if not here and not elsewhere:
        return boxed(f"No attached processes in {name}", (), [])
    tables = []
    if here:
        tables.append(boxed(f"Attached processes in {name}", _PROCESS_COLUMNS, _by_board(here)))
    if elsewhere:
        title = f"Attached processes of other containers in {name}"
        tables.append(boxed(title, _PROCESS_COLUMNS, _by_board(elsewhere)))
    return "\n".join(tables)


def _by_board(used: Sequence[tuple[Listed, Owner]]) -> list[list[tuple[str, ...]]]:
    boards: dict[int, list[tuple[str, ...]]] = {}
    for device, owner in used:
        rows = boards.setdefault(device.board_number, [])
        process = (str(owner.pid or _UNKNOWN), _short(owner.command), _age(owner), owner.user or _UNKNOWN)
        of_board = ("", "") if rows else (_UNKNOWN, _UNKNOWN)
        rows.append((*process, str(device.device_id), f"{device.board.clock_mhz}MHz", _UNKNOWN, *of_board))
    return list(boards.values())


def _short(command: str) -> str:
    return command if len(command) <= _LONGEST_COMMAND else f"{command[: _LONGEST_COMMAND - 3]}..."


def _age(owner: Owner) -> str:
    return _UNKNOWN if owner.since is None else age(time.time() - owner.since)
