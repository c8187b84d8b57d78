"""Reading the command line and configuration files, and writing the help."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from popdist.poprun.errors import PoprunError, UsageError
from popdist.poprun.settings import OPTIONS, Option, Settings
from poptorch_files import read_text

USAGE = "Usage: poprun [options] program [program arguments]"

_LONGEST_FILE = 1 << 20
_ABOUT_THE_FILE = ("help", "version", "version_format", "import_config", "export_config", "overwrite_config")
"""Options that no configuration file has."""


@dataclass(frozen=True)
class CommandLine:
    """What was asked for."""

    settings: Settings
    program: tuple[str, ...]


def parse(arguments: Sequence[str]) -> CommandLine:
    """Read options up to the first word that is none; the rest is the program.

    >>> line = parse(["--num-replicas=4", "--num-instances", "2", "-v", "python", "train.py", "--num-replicas", "1"])
    >>> line.settings.num_replicas, line.settings.num_instances, line.settings.verbose
    (4, 2, True)
    >>> line.program
    ('python', 'train.py', '--num-replicas', '1')
    """
    given, rest = _split(arguments)
    chosen = _collect(given)
    file = chosen.get("import_config")
    if file is not None:
        chosen = {**_collect(_read(Path(file))), **chosen}
    settings = Settings(**chosen)
    if settings.host is not None and settings.hostfile is not None:
        raise UsageError("--host and --hostfile exclude each other: give the hosts once.")
    return CommandLine(settings, tuple(rest))


def export(settings: Settings, file: Path) -> None:
    """Write the options in force so that ``--import-config`` can read them."""
    lines = ["# Options of PopRun: poprun --import-config reads this file."]
    for option in OPTIONS:
        if option.field not in _ABOUT_THE_FILE:
            lines += [f"{option.name} = {text}" for text in option.texts(getattr(settings, option.field))]
    try:
        with open(file, "w" if settings.overwrite_config else "x", encoding="utf-8") as opened:
            opened.write("\n".join(lines) + "\n")
    except FileExistsError:
        raise PoprunError(
            f"--export-config: {file} exists already. Choose another name, or give --overwrite-config=yes."
        ) from None
    except OSError as error:
        raise PoprunError(f"--export-config: {file} cannot be written: {error.strerror}.") from None


def help_text() -> str:
    """The usage and all options."""
    lines = [USAGE, "", "Starts a program as several instances, each with its replicas.", "", "Options:"]
    for option in OPTIONS:
        names = ", ".join([*option.aliases, f"--{option.name}"])
        default = "" if option.default in (None, False, ()) else f" (default: {_shown(option)})"
        lines.append(f"  {names} {option.value}".rstrip())
        lines += textwrap.wrap(option.help + default, 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


def _shown(option: Option) -> str:
    return next(iter(option.texts(option.default)), "")


def _by_spelling() -> dict[str, Option]:
    return {spelling: option for option in OPTIONS for spelling in (f"--{option.name}", *option.aliases)}


def _split(arguments: Sequence[str]) -> tuple[list[tuple[Option, str]], list[str]]:
    """The options with the texts of their values, and the words after them."""
    options = _by_spelling()
    given: list[tuple[Option, str]] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        spelling, equals, attached = word.partition("=")
        if spelling not in options and word.startswith("-H"):
            spelling, equals, attached = "-H", "=", word[2:]
        if spelling not in options:
            raise UsageError(f"There is no option {spelling}.")
        option = options[spelling]
        if equals:
            given.append((option, attached))
        elif not option.value:
            given.append((option, "yes"))
        elif rest:
            given.append((option, rest.pop(0)))
        else:
            raise UsageError(f"{spelling} needs a value: {spelling} {option.value}.")
    return given, rest


def _collect(given: Iterable[tuple[Option, str]]) -> dict[str, Any]:
    """The values by field. Of an option that is given twice the last counts, unless its values add up."""
    chosen: dict[str, Any] = {}
    for option, text in given:
        value = option.read(text)
        chosen[option.field] = chosen.get(option.field, ()) + value if option.adds_up else value
    return chosen


def _read(file: Path) -> list[tuple[Option, str]]:
    """The options of a configuration file: one in each line, ``name = value``; ``#`` starts a comment line."""
    try:
        text = read_text(file, _LONGEST_FILE)
    except OSError as error:
        raise PoprunError(f"--import-config: {file} cannot be read: {error.strerror}.") from None
    known = {option.name: option for option in OPTIONS if option.field not in _ABOUT_THE_FILE}
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = (part.strip() for part in stripped.partition("="))
        if not equals or name not in known:
            raise PoprunError(f"--import-config: line {number} of {file} is no option: {stripped[:80]!r}.")
        found.append((known[name], value))
    return found
