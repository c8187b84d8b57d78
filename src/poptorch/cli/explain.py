"""``poptorch explain PT1002``: what an error means, and what to do about it."""

from __future__ import annotations

import argparse
import re
import textwrap

from poptorch.error_catalogue import ENTRIES, PARTS
from poptorch.errors import createPoptorchError

_LINK = re.compile(r"\[(.+?)\]\((.+?)\)")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to its parser."""
    said = "what the code at the end of an error means"
    parser = commands.add_parser("explain", help=said, description=f"Explain {said}.")
    parser.add_argument("code", nargs="?", help="such as PT1002; without one, all codes are listed")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    print(explained(chosen.code) if chosen.code else listed())
    return 0


def listed() -> str:
    """All codes with their titles, by parts.

    >>> listed().splitlines()[:2]
    ['Tools', '  PT0000  A tool cannot do this']
    """
    lines = []
    for digit, part in PARTS.items():
        lines.append(part)
        lines += [f"  {code}  {entry.title}" for code, entry in ENTRIES.items() if code[2] == digit]
    return "\n".join(lines)


def explained(code: str) -> str:
    """Cause, example and cure of an error.

    >>> explained("pt1001").splitlines()[0]
    'PT1001: The model is not compiled'
    """
    entry = ENTRIES.get(code.upper().strip("[]"))
    if entry is None:
        raise createPoptorchError(f"There is no error {code!r}. `poptorch explain` lists all codes.")
    parts = [f"{entry.code}: {entry.title}", textwrap.fill(entry.cause, 100)]
    parts += ["For example:", textwrap.indent(entry.example.strip(), "    ")]
    parts += ["What to do:", textwrap.fill(_LINK.sub(r"\1 (docs/\2)", entry.cure), 100)]
    if entry.cured:
        parts.append(textwrap.indent(entry.cured.strip(), "    "))
    return "\n\n".join(parts)
