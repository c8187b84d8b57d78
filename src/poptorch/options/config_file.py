"""Settings in a text file: a Python statement on each line, as if ``options.`` stood in front of it."""

from __future__ import annotations

import builtins
import importlib
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

# The wording for a statement that stops too early has changed between Python versions; ours does not.
_INCOMPLETE = "unexpected EOF while parsing"


class ConfigFileError(Exception):
    """A line of a configuration file is not a valid Python statement."""


@dataclass(frozen=True)
class _Statement:
    code: CodeType
    source: str
    physical_line: int


def load(options: Any, filepath: str) -> None:
    """Apply the file at ``filepath`` to ``options``; with a syntax error anywhere nothing is applied."""
    statements = _parse(filepath)
    # The public package, as the author of the file knows it; imported here because it is made from this one.
    names = {"poptorch": importlib.import_module("poptorch"), "options": options, "__builtins__": builtins}
    for statement in statements:
        try:
            exec(statement.code, names)
        except Exception as error:
            error.add_note(f'In {filepath}, line {statement.physical_line}: "{statement.source}"')
            raise


def _parse(filepath: str) -> list[_Statement]:
    statements: list[_Statement] = []
    lines = Path(filepath).read_text(encoding="utf-8").split("\n")
    for physical_line, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        source = f"options.{text}"
        try:
            # Line by line, so that the line which is incomplete gets the blame, not the one after it.
            code = compile(source, str(filepath), "exec")
        except SyntaxError as error:
            raise _described(error, source, len(statements) + 1, physical_line, filepath) from None
        statements.append(_Statement(code, source, physical_line))
    return statements


def _described(
    error: SyntaxError, source: str, kept: int, physical_line: int, filepath: str
) -> ConfigFileError:
    """The message counts lines without blank and comment lines, as programs that parse it expect."""
    name = Path(filepath).name
    if _stops_too_early(error):
        detail, more = _INCOMPLETE, f" ({error.msg})" if error.msg != _INCOMPLETE else ""
    else:
        detail, more = str(error.msg), ""
    return ConfigFileError(
        f"SyntaxError at line {kept} of {name}: {detail}\n> {source}\n"
        f"Line {physical_line} of the file, counting blank lines and comments, is not one complete Python "
        f"statement{more}; a statement cannot continue on the next line."
    )


def _stops_too_early(error: SyntaxError) -> bool:
    message = str(error.msg)
    return message == _INCOMPLETE or "was never closed" in message
