"""Commands for the shell: ``python -m poptorch <command>``, ``gc-info`` and ``gc-monitor``. Each has a module here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from poptorch.cli import cache, devices, estimate, report
from poptorch.errors import Error

_COMMANDS = (cache.add_to, devices.add_to, estimate.add_to, report.add_to)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m poptorch", description="Caches, devices, estimates, reports.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add_to in _COMMANDS:
        add_to(commands)
    chosen = parser.parse_args(arguments)
    try:
        status: int = chosen.run(chosen)
    except Error as problem:
        print(problem, file=sys.stderr)
        return 1
    return status
