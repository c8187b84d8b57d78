"""Commands for the shell: ``poptorch <command>``, ``gc-info`` and ``gc-monitor``. Each has a module here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from poptorch._version import __version__
from poptorch.cli import cache, completion, devices, doctor, estimate, explain, report
from poptorch.cli.running import ended

_COMMANDS = (
    doctor.add_to,
    explain.add_to,
    cache.add_to,
    devices.add_to,
    estimate.add_to,
    report.add_to,
    completion.add_to,
)


def parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    made = argparse.ArgumentParser(
        prog="poptorch", description="Diagnosis, errors, caches, devices, estimates, reports."
    )
    made.add_argument("--version", action="version", version=f"poptorch {__version__}")
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add_to in _COMMANDS:
        add_to(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    chosen = parser().parse_args(arguments)
    return ended(lambda: int(chosen.run(chosen)))
