"""Write docs/compatibility.md from the code: every public name, option, environment variable and difference.

python scripts/generate_compatibility.py            write the file
python scripts/generate_compatibility.py --check    exit 1 if the file is not what would be written
"""

from __future__ import annotations

import argparse
import ast
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import compat_notes

import poptorch
from popdist import context as launcher
from poptorch import compat, environment
from poptorch.options.backend_keys import PASSTHROUGH_KEYS
from poptorch.options.rows import Option
from poptorch.options.table import OPTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compatibility.md"

EFFECTS = {
    "host": "has its effect here",
    "modelled": "changes what the IPU Model predicts, not what the host computes",
    "none": "accepted and stored; no effect on the host and none on the model",
    "later": "accepted, stored and checked; the part that acts on it is not there yet, and compiling with it warns",
}

IMPORTED_EXPLICITLY = ("testing", "distributed")
SUBMODULES = ("optim", "profiling", "experimental", *IMPORTED_EXPLICITLY)
"""Public modules whose names are listed too; the other public names are reached from ``poptorch`` itself."""


def main() -> int:
    """Write the page, or compare with it."""
    parser = argparse.ArgumentParser(description="Write docs/compatibility.md from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the file is out of date")
    arguments = parser.parse_args()
    text = page()
    if not arguments.check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print(f"docs/{PAGE.name} is out of date: run `make compatibility` and commit it", file=sys.stderr)
        return 1
    return 0


def page() -> str:
    """The whole page."""
    sections = [
        introduction(), differences(), options(), public_names(), private_names(), companions(), variables(),
    ]  # fmt: skip
    return "\n\n".join(sections) + "\n"


def introduction() -> str:
    """What the page is and how to read it."""
    return f"""# Compatibility

<!-- Written by `make compatibility` from the code and from scripts/compat_notes.py: edit these instead. -->

What exists in `poptorch` {poptorch.__version__}, taken from the code. What is not listed is not there."""


def differences() -> str:
    """The recorded differences, one row each."""
    rows = [(note.topic, note.original, note.here) for note in compat_notes.NOTES]
    return "## Differences from the original\n\n" + table(("about", "original", "here"), rows)


def options() -> str:
    """One table per group of options."""
    legend = "\n".join(f"- **{word}**: {meaning}" for word, meaning in EFFECTS.items())
    groups: dict[str, list[Option]] = {}
    for option in OPTIONS:
        groups.setdefault(option.group, []).append(option)
    header = ("option", "what it sets", "effect here")
    tables = [
        f"### `{prefix(group)}`\n\n" + table(header, map(option_row, members)) for group, members in groups.items()
    ]
    return "\n\n".join([f"## Options\n\n{legend}", *tables, backend_keys()])


def backend_keys() -> str:
    """The keys that ``Options._Popart.set`` takes."""
    rows = [(f"`{key.name}`", key.kind, f"**{key.effect}**: {key.effect_note}") for key in PASSTHROUGH_KEYS]
    return "### Keys of `Options._Popart.set`\n\n" + table(("key", "kind", "effect here"), rows)


def prefix(group: str) -> str:
    """How the group is reached: ``Options.Training``, but ``TensorLocationSettings``."""
    return group if group in ("Options", "TensorLocationSettings") else f"Options.{group}"


def option_row(option: Option) -> tuple[str, str, str]:
    """Call, description and effect of one option."""
    names = ", ".join(("*" if parameter.variadic else "") + parameter.name for parameter in option.parameters)
    life = [f"since {option.since}"] if option.since else []
    life += [f"until {option.until}"] if option.until else []
    life += [f"use `{option.replacement}`"] if option.replacement else []
    doc = summary(option.doc) + (f" ({', '.join(life)})" if life else "")
    return f"`{option.method}({names})`", doc, f"**{option.effect}**: {option.effect_note}"


def public_names() -> str:
    """Every public name with the first sentence of its documentation."""
    exported = exported_names()
    parts = ["## Public names", names_table("poptorch", exported)]
    for name in SUBMODULES:
        if name not in exported and name not in IMPORTED_EXPLICITLY:
            continue  # its room is not there yet
        module = importlib.import_module(f"poptorch.{name}")
        parts += [f"### `poptorch.{name}`", names_table(f"poptorch.{name}", own_names(module))]
    return "\n\n".join(parts)


def private_names() -> str:
    """The names that are no part of the public API, but that libraries use."""
    text = "Public libraries and programs use these names of the original, which it never documented."
    rows = [(f"`{name}`", purpose) for name, purpose in compat.NAMES.items()]
    return f"## Private names of the original\n\n{text}\n\n" + table(("name", "what it does"), rows)


def companions() -> str:
    """The packages beside ``poptorch`` that are installed with it."""
    parts = ["## Companion packages", "Programs import these beside `poptorch`; they come with the same installation."]
    for package, purpose in compat_notes.COMPANIONS.items():
        module = importlib.import_module(package)
        names = {name: getattr(module, name) for name in module.__all__ if name != "__version__"}
        parts += [f"### `{package}`", purpose, names_table(package, names)]
    read = [(f"`{name}`", purpose) for name, purpose in launcher.VARIABLES.items()]
    parts += ["### Environment variables of the launcher", table(("variable", "meaning"), read)]
    return "\n\n".join(parts)


def exported_names() -> dict[str, object]:
    """What ``poptorch/__init__.py`` imports by name, also at first use; submodules that merely got loaded are not."""
    source = Path(inspect.getfile(poptorch)).read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    names = [alias.asname or alias.name for node in imports for alias in node.names]
    return {name: getattr(poptorch, name) for name in names if not name.startswith("_")}


def own_names(module: ModuleType) -> dict[str, object]:
    """The classes and functions of a public module that belong to this package."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    return {name: it for name, it in found.items() if getattr(it, "__module__", "").startswith("poptorch")}


def names_table(path: str, names: dict[str, object]) -> str:
    """A table of public names, in alphabetical order regardless of case."""
    ordered = sorted(names.items(), key=lambda item: (item[0].lower(), item[0]))
    rows = [(f"`{path}.{name}`", kind_of(value), describe(name, value)) for name, value in ordered]
    return table(("name", "kind", "what it is"), rows)


def kind_of(value: object) -> str:
    """One word for what a public name is."""
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        if issubclass(value, enum.Enum):
            return "enum"
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if callable(value) else type(value).__name__


def describe(name: str, value: object) -> str:
    """The first paragraph of the documentation; for an enum also its members."""
    if name == "logger":
        return "The logger of the Python side, `poptorch::python`."
    text = summary(inspect.getdoc(value) or "")
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        text += " Members: " + ", ".join(f"`{member}`" for member in value.__members__) + "."
    return text


def variables() -> str:
    """The environment variables."""
    rows = [
        (f"`{variable.name}`", variable.doc, default_of(variable), variable.read_at)
        for variable in environment.VARIABLES
    ]
    return "## Environment variables\n\n" + table(("variable", "meaning", "default", "read at"), rows)


def default_of(variable: environment.Variable[Any]) -> str:
    """The default of a variable as the user would write it, if it has one."""
    if variable.default is None:
        return ""
    return f"`{int(variable.default) if isinstance(variable.default, bool) else variable.default}`"


def summary(doc: str) -> str:
    """The first paragraph, on one line and without the markup of docstrings."""
    first = inspect.cleandoc(doc).split("\n\n")[0]
    line = " ".join(first.split())
    line = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", line)
    return line.replace("``", "`")


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
