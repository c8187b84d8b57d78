"""``poptorch completion bash``: the script that completes commands and flags in a shell."""

from __future__ import annotations

import argparse
from typing import Any

from poptorch.errors import createPoptorchError


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "completion", help="print a script that completes commands and flags in bash, zsh or tcsh"
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    from poptorch import cli

    try:
        import shtab
    except ImportError:
        raise createPoptorchError(
            "Completion scripts are written by the package shtab, which is not installed: pip install shtab."
        ) from None
    print(shtab.complete(cli.parser(), shell=chosen.shell))
    return 0
