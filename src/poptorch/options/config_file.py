"""Settings in a text file: a Python statement on each line, as if ``options.`` stood in front of it.

A file is parsed, not run: calls on the options and values that stand there (:mod:`poptorch.options.config_values`).
What else it contains is refused with its line before anything is applied, unless the file is ``trusted``: then it is
Python code like any other.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from poptorch.errors import Error, coded
from poptorch.options import config_values
from poptorch_files import FileError, read_text

# The wording for a statement that stops too early has changed between Python versions; ours does not.
_INCOMPLETE = "unexpected EOF while parsing"

_MOST_BYTES = 1 << 20
_LONGEST_LINE = 10_000
_LONGEST_SHOWN = 120
_MOST_NESTED = 20


class ConfigFileError(Error):
    """A line of a configuration file is not a valid Python statement, or one that only trusted files may have."""

    code = "PT3003"

    def __init__(self, message: str) -> None:
        super().__init__(coded(message, self.code))


@dataclass(frozen=True)
class _Statement:
    tree: ast.Module
    code: CodeType
    source: str
    physical_line: int


def load(options: Any, filepath: str, trusted: bool) -> None:
    """Apply the file at ``filepath`` to ``options``; with an error in the form of any line nothing is applied."""
    statements = _parse(filepath)
    # The public package, as the author of the file knows it; imported here because it is made from this one.
    public = importlib.import_module("poptorch")
    if not trusted:
        for number, statement in enumerate(statements, 1):
            with _refusals(filepath, statement, number):
                config_values.check(statement.tree)
    names = {"poptorch": public, "options": options, "__builtins__": builtins}
    reader = config_values.Reader(options, public)
    with _depth(filepath):
        for number, statement in enumerate(statements, 1):
            try:
                if trusted:
                    exec(statement.code, names)
                else:
                    with _refusals(filepath, statement, number):
                        reader.run(statement.tree)
            except Exception as error:
                error.add_note(f'In {filepath}, line {statement.physical_line}: "{_shown(statement.source)}"')
                raise


class _Depth(threading.local):
    files = 0


_nested = _Depth()


@contextmanager
def _depth(filepath: str) -> Iterator[None]:
    """Files may load others, but not themselves."""
    if _nested.files >= _MOST_NESTED:
        raise ConfigFileError(f"{filepath} is loaded by a file that it loads itself, or through too many others.")
    _nested.files += 1
    try:
        yield
    finally:
        _nested.files -= 1


@contextmanager
def _refusals(filepath: str, statement: _Statement, kept: int) -> Iterator[None]:
    try:
        yield
    except config_values.Refused as refused:
        raise ConfigFileError(
            f"Line {kept} of {Path(filepath).name} is refused: {refused}.\n> {_shown(statement.source)}\n"
            f"Line {statement.physical_line} of the file, counting blank lines and comments. Files are read, not run: "
            "a line calls setters of the options with numbers, texts, lists, and enums and strategies of poptorch. If "
            f"you trust {filepath} as you trust your own code, use loadFromFile(..., trusted=True)."
        ) from None


def _parse(filepath: str) -> list[_Statement]:
    statements: list[_Statement] = []
    try:
        lines = read_text(filepath, _MOST_BYTES).split("\n")
    except FileError as error:
        raise ConfigFileError(f"The configuration file {filepath} cannot be read: {error.strerror}.") from None
    for physical_line, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        source = f"options.{text}"
        try:
            # Line by line, so that the line which is incomplete gets the blame, not the one after it.
            tree, code = _compiled(source, str(filepath))
        except SyntaxError as error:
            raise _described(error, source, len(statements) + 1, physical_line, filepath) from None
        statements.append(_Statement(tree, code, source, physical_line))
    return statements


def _compiled(source: str, filepath: str) -> tuple[ast.Module, CodeType]:
    if len(source) > _LONGEST_LINE:
        raise SyntaxError(f"a line of {len(source)} characters; at most {_LONGEST_LINE} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            tree = ast.parse(source, filepath)
            return tree, compile(tree, filepath, "exec")
    except (RecursionError, MemoryError):
        raise SyntaxError("too many nested expressions") from None
    except ValueError as error:  # a NUL
        raise SyntaxError(str(error)) from None


def _described(error: SyntaxError, source: str, kept: int, physical_line: int, filepath: str) -> ConfigFileError:
    """The message counts lines without blank and comment lines, as programs that parse it expect."""
    name = Path(filepath).name
    if _stops_too_early(error):
        detail, more = _INCOMPLETE, f" ({error.msg})" if error.msg != _INCOMPLETE else ""
    else:
        detail, more = str(error.msg), ""
    return ConfigFileError(
        f"SyntaxError at line {kept} of {name}: {detail}\n> {_shown(source)}\n"
        f"Line {physical_line} of the file, counting blank lines and comments, is not one complete Python "
        f"statement{more}; a statement cannot continue on the next line."
    )


def _shown(source: str) -> str:
    return source if len(source) <= _LONGEST_SHOWN else f"{source[:_LONGEST_SHOWN]}..."


def _stops_too_early(error: SyntaxError) -> bool:
    message = str(error.msg)
    return message == _INCOMPLETE or "was never closed" in message
