"""Commands for the shell: ``python -m poptorch <command>``. Each module here adds one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from poptorch.cli import cache, estimate

_COMMANDS = (cache.add_to, estimate.add_to)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m poptorch", description="Caches, and estimates of models.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add_to in _COMMANDS:
        add_to(commands)
    chosen = parser.parse_args(arguments)
    status: int = chosen.run(chosen)
    return status
