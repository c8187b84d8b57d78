"""Write ``src/poptorch/options/setters.py``: one method for each row of the option table.

python scripts/generate_option_setters.py          writes the file
python scripts/generate_option_setters.py --check  fails if the file is not what would be written
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from poptorch.options.rows import ABSENT, Key, Option
from poptorch.options.table import OPTIONS, keys_of, python_side_keys, rows_of

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src" / "poptorch" / "options" / "setters.py"

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

HEADER = '''\
"""The setters of all options, with their documentation.

Made by ``scripts/generate_option_setters.py`` from the option table: edit the table and run the script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from poptorch.options.calling import call
from poptorch.options.rows import ABSENT

if TYPE_CHECKING:
    import torch

    import poptorch.autocasting
    import poptorch.enums
    import poptorch.options.groups
    import poptorch.placement.strategies
'''

EFFECT_WORDS = {
    "host": "Effect",
    "modelled": "Effect (IPU Model only)",
    "none": "No effect on virtual IPUs",
    "later": "No effect yet",
}


def file_text() -> str:
    """The whole module, formatted."""
    missing = {row.group for row in OPTIONS} - CLASSES.keys()
    if missing:
        raise SystemExit(f"Groups without a class in this script: {sorted(missing)}")
    text = HEADER + "".join(class_text(group, name) for group, name in CLASSES.items())
    return formatted(text)


def formatted(text: str) -> str:
    """``text`` as ``ruff format`` writes it."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def class_text(group: str, name: str) -> str:
    """One class: what type checkers see of its keys, then its Python-side settings and its setters."""
    owner = group if group in ("Options", "TensorLocationSettings") else f"Options.{group}"
    lines = [f"class {name}:", f'    """The setters of ``{owner}``."""', "", "    __slots__ = ()", ""]
    lines += [textwrap.indent(text, "    ") for text in declarations(group)]
    for key in python_side_keys(group).values():
        lines.append(textwrap.indent(reader_text(group, key), "    "))
    lines += [textwrap.indent(method_text(row), "    ") for row in rows_of(group)]
    return "\n\n" + "\n".join(lines) + "\n"


def declarations(group: str) -> Iterator[str]:
    """The attributes that hold the values of the keys, for type checkers and editors."""
    methods = {row.method for row in rows_of(group)}
    fields = [f"{key.name}: {type_text(key)}" for key in keys_of(group).values() if key.name not in methods]
    fields += [f"_{key.name}: {type_text(key)}" for key in python_side_keys(group).values()]
    if fields:
        yield "if TYPE_CHECKING:\n" + textwrap.indent("\n".join(fields), "    ") + "\n"


def reader_text(group: str, key: Key) -> str:
    """The read-only property of a setting that never reaches the backend."""
    (setter, *_) = [row.method for row in rows_of(group) if key in row.keys]
    summary = textwrap.fill(f"What ``{setter}`` set; starts as ``{key.default!r}``.", 100)
    return "\n".join(
        [
            f"@property\ndef {key.name}(self) -> {type_text(key)}:",
            textwrap.indent(f'"""{summary}"""', "    "),
            f"    return self._{key.name}",
            "",
        ]
    )


def type_text(key: Key) -> str:
    """The type of a key; containers get ``Any`` elements, because their values are not all of one type."""
    kind = key.type
    if kind is dict:
        return "dict[Any, Any]"
    if kind is list:
        return "list[str]"
    return inspect.formatannotation(kind)


def method_text(row: Option) -> str:
    """One setter: its signature, its documentation, and the call that stores."""
    result = "Self" if row.returns_self else "None"
    parameters = [str(parameter) for parameter in row.signature().parameters.values()]
    values = [f"*{parameter.name}" if parameter.variadic else parameter.name for parameter in row.parameters]
    if row.renamed_parameters:
        parameters += ["*", *(f"{old}: Any = ABSENT" for old in row.renamed_parameters)]
        values += [f"{old}={old}" for old in row.renamed_parameters]
    parameters = [parameter.replace("typing.Any", "Any").replace("'", "") for parameter in parameters]
    arguments = ", ".join(["self", f'"{row.group}.{row.method}"', *values])
    return "\n".join(
        [
            f"def {row.method}({', '.join(parameters)}) -> {result}:",
            textwrap.indent(f'"""{describe(row)}"""', "    ", lambda line: line.strip() != ""),
            f"    {'return ' if row.returns_self else ''}call({arguments})",
            "",
        ]
    )


def describe(row: Option) -> str:
    """The documentation of the setter that ``row`` describes, with an example that runs."""
    parts = [textwrap.dedent(row.doc).strip()]
    parts.append(f"{EFFECT_WORDS[row.effect]}: {row.effect_note}")
    defaults = [f"``{key.name}`` = ``{key.default!r}``" for key in row.keys if key.default is not ABSENT]
    if defaults:
        parts.append(f"Starts as {', '.join(defaults)}.")
    for refusal in row.refusals[:1]:
        parts.append(f"A wrong argument raises ``{refusal.error.__name__}``.")
    if row.since or row.until:
        since, until = row.since or "the first release", row.until or "today"
        parts.append(f"In the original from {since} to {until}.")
    if row.replacement:
        parts.append(f"Deprecated: use ``{row.replacement}``.")
    parts.append("\n".join(example_lines(row)))
    return "\n\n".join(textwrap.fill(part, 100) if ">>>" not in part else part for part in parts) + "\n"


def example_lines(row: Option) -> list[str]:
    """The example as it would be typed in a Python session, with its output."""
    needs_torch = re.search(r"\btorch\.", row.example) is not None
    lines = [">>> import poptorch, torch" if needs_torch else ">>> import poptorch"]
    if row.group == "TensorLocationSettings":
        lines += [">>> settings = poptorch.TensorLocationSettings()"]
        owner = "settings"
    else:
        lines += [">>> opts = poptorch.Options()"]
        owner = "opts" if row.group == "Options" else f"opts.{row.group}"
    lines.append(f">>> _ = {owner}.{row.method}({row.example})")
    if row.keys:
        lines += [f">>> {reading_expression(owner, row.keys[0], row)}", row.stored]
    return lines


def reading_expression(owner: str, key: Key, row: Option) -> str:
    """The expression that shows what ``key`` holds."""
    if key.store == "popart":
        return f"opts._Popart.options[{key.name!r}]"
    # A key that is called like its setter cannot be read as an attribute.
    return f"{owner}({key.name!r})" if key.name == row.method else f"{owner}.{key.name}"


def main(arguments: list[str]) -> int:
    text = file_text()
    if "--check" in arguments:
        if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET.name} is older than the option table: run {Path(__file__).name}", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
