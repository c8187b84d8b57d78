"""Commands for the shell: ``python -m poptorch <command>``, ``gc-info`` and ``gc-monitor``. Each has a module here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from poptorch.cli import cache, devices

_COMMANDS = (cache.add_to, devices.add_to)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m poptorch", description="Look after what poptorch keeps.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add_to in _COMMANDS:
        add_to(commands)
    chosen = parser.parse_args(arguments)
    status: int = chosen.run(chosen)
    return status
