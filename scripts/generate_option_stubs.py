"""Write ``src/poptorch/options/setters.pyi``: the generated setters, for type checkers and editors.

python scripts/generate_option_stubs.py          writes the file
python scripts/generate_option_stubs.py --check  fails if the file is not what would be written
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path

from poptorch.options.rows import Key, Option
from poptorch.options.table import OPTIONS, keys_of, python_side_keys, rows_of

TARGET = Path(__file__).resolve().parent.parent / "src" / "poptorch" / "options" / "setters.pyi"

INDENT = "    "
LINE_LENGTH = 110

CLASSES = {
    "Options": "OptionsSetters",
    "Training": "TrainingSetters",
    "Precision": "PrecisionSetters",
    "TensorLocations": "TensorLocationSetters",
    "Distributed": "DistributedSetters",
    "Jit": "JitSetters",
    "_Popart": "PopartSetters",
    "TensorLocationSettings": "TensorLocationSettingsSetters",
}

HEADER = """\
# Made by scripts/generate_option_stubs.py from the option table: edit the table and run the script.
from typing import Any, Self

import torch

import poptorch.autocasting
import poptorch.enums
import poptorch.options.groups
import poptorch.placement.strategies
"""


def stub_text() -> str:
    """The whole stub file."""
    missing = {row.group for row in OPTIONS} - CLASSES.keys()
    if missing:
        raise SystemExit(f"Groups without a class in this script: {sorted(missing)}")
    return HEADER + "".join(class_text(group, name) for group, name in CLASSES.items())


def class_text(group: str, name: str) -> str:
    """One class: its keys as attributes, its Python-side settings as properties, its setters."""
    methods = {row.method for row in rows_of(group)}
    lines = [f"    {key_line(key)}" for key in keys_of(group).values() if key.name not in methods]
    for key in python_side_keys(group).values():
        lines.append(f"    _{key.name}: {type_text(key)}")
        lines.append(f"    @property\n    def {key.name}(self) -> {type_text(key)}: ...")
    lines += [textwrap.indent(method_text(row), INDENT) for row in rows_of(group)]
    return f"\nclass {name}:\n" + "\n".join(lines) + "\n"


def key_line(key: Key) -> str:
    return f"{key.name}: {type_text(key)}"


def type_text(key: Key) -> str:
    """The type of a key; containers get ``Any`` elements, because their values are not all of one type."""
    kind = key.type
    if kind is dict:
        return "dict[Any, Any]"
    if kind is list:
        return "list[str]"
    return inspect.formatannotation(kind)


def method_text(row: Option) -> str:
    result = "Self" if row.returns_self else "None"
    parameters = [str(parameter) for parameter in row.signature().parameters.values()]
    if row.renamed_parameters:
        parameters += ["*", *(f"{old}: Any = ..." for old in row.renamed_parameters)]
    parameters = [parameter.replace("typing.Any", "Any").replace("'", "") for parameter in parameters]
    line = f"def {row.method}({', '.join(parameters)}) -> {result}: ..."
    if len(line) <= LINE_LENGTH - len(INDENT):
        return line
    return "\n".join(
        [f"def {row.method}(", *(f"{INDENT}{text}," for text in parameters), f") -> {result}: ..."]
    )


def main(arguments: list[str]) -> int:
    text = stub_text()
    if "--check" in arguments:
        if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(
            f"{TARGET.name} is older than the option table: run this script without --check", file=sys.stderr
        )
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
