"""Write docs/options.md and docs/environment.md from the tables in the code.

python scripts/generate_reference.py            write the files
python scripts/generate_reference.py --check    exit 1 if a file is not what would be written
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path

from poptorch import environment
from poptorch.options.rows import ABSENT, Option
from poptorch.options.table import OPTIONS, rows_of

DOCS = Path(__file__).resolve().parent.parent / "docs"

GROUPS = {
    "Options": ("options", "All settings of one model."),
    "Training": ("options.Training", "How gradients are accumulated, combined and scaled."),
    "Precision": ("options.Precision", "Number formats: casting, partials, rounding, floating-point exceptions."),
    "TensorLocations": ("options.TensorLocations", "Where weights, activations and optimizer state live."),
    "TensorLocationSettings": ("settings", "What a location consists of: `poptorch.TensorLocationSettings()`."),
    "Distributed": ("options.Distributed", "Which of how many processes this one is."),
    "Jit": ("options.Jit", "How the graph is captured."),
    "_Popart": ("options._Popart", "Settings of the backend, handed on as they are."),
}

SUBJECTS = {
    "Batches and replicas": ("deviceIterations", "replicationFactor", "inputReplicaGrouping", "broadcastBuffers"),
    "What comes back": ("outputMode", "anchorTensor", "anchorMode"),
    "Placement": ("setExecutionStrategy", "autoRoundNumIPUs", "setAvailableMemoryProportion", "enablePipelining"),
    "Devices": ("useIpuModel", "useIpuId", "useOfflineIpuTarget", "connectionType", "syncPattern"),
    "Files, caches and reports": (
        "enableExecutableCaching", "enableProfiling", "logDir", "modelName", "logCycleCount",
    ),
    "What is shown": (
        "showCompilationProgressBar", "maxRepeatLogs", "sourceLocationExcludes", "disableModuleNamescope",
        "appendToLocationExcludes",
    ),
}  # fmt: skip
"""The setters of ``Options`` itself, by subject; the others come last."""

EFFECTS = {
    "host": "Effect",
    "modelled": "Effect on the IPU Model only",
    "none": "No effect on virtual IPUs",
    "later": "No effect yet",
}

MADE = "<!-- Written by scripts/generate_reference.py: edit the tables in the code instead. -->"


def options_page() -> str:
    """Every option, grouped, with its default and an anchor."""
    parts = [
        "# Options",
        MADE,
        "Every setter, with what it starts as and what it does here. `print(options)` shows what differs from the "
        "defaults, [from_json and to_json](api/options.md) read and write settings as text. "
        "`options.loadFromFile(path)` reads a file with a call in each line, such as `deviceIterations(4)`.",
    ]
    for group, (reached, about) in GROUPS.items():
        rows = rows_of(group)
        parts.append(f"## {reached} {{#{group}}}\n\n{about}")
        if group != "Options":
            parts += [entry(row, reached) for row in rows]
            continue
        for subject, chosen in by_subject(rows).items():
            parts += [f"### {subject}", *(entry(row, reached) for row in chosen)]
    return "\n\n".join(parts) + "\n"


def by_subject(rows: list[Option]) -> dict[str, list[Option]]:
    """The setters of ``Options`` by subject, in the order of the table."""
    known = {name: subject for subject, names in SUBJECTS.items() for name in names}
    found: dict[str, list[Option]] = {subject: [] for subject in (*SUBJECTS, "Others")}
    for row in rows:
        found[known.get(row.method, "Others")].append(row)
    return {subject: chosen for subject, chosen in found.items() if chosen}


def entry(row: Option, reached: str) -> str:
    """One option: how it is called, what it sets, its default, its effect, its limits."""
    parameters = list(row.signature().parameters.values())[1:]
    call = f"{reached}.{row.method}({', '.join(map(shown, parameters))})"
    lines = [f"#### {row.method} {{#{row.qualified_name}}}", f"```text\n{call}\n```"]
    lines.append(" ".join(textwrap.dedent(row.doc).split()).replace("``", "`"))
    facts = []
    defaults = [f"`{key.name} = {key.default!r}`" for key in row.keys if key.default is not ABSENT]
    if defaults:
        facts.append(f"- Default: {', '.join(defaults)}")
    facts.append(f"- {EFFECTS[row.effect]}: {row.effect_note.replace('``', '`')}")
    facts.append(f"- Example: `{reached}.{row.method}({row.example})`")
    facts += [
        f"- Refused with `{refusal.error.__name__}`: {arguments(refusal.arguments)}" for refusal in row.refusals[:1]
    ]
    if row.since or row.until:
        facts.append(f"- In the original from {row.since or 'the first release'} to {row.until or 'today'}")
    if row.replacement:
        facts.append(
            f"- Deprecated: use [{row.replacement}](#{row.qualified_name.rpartition('.')[0]}.{row.replacement})"
        )
    return "\n\n".join([*lines, "\n".join(facts)])


def shown(parameter: inspect.Parameter) -> str:
    """A parameter with its type, without the names of our modules."""
    text = str(parameter).replace("'", "")
    for prefix in ("poptorch.enums.", "poptorch.options.groups.", "poptorch.placement.strategies.", "typing."):
        text = text.replace(prefix, "")
    return text


def arguments(values: tuple[object, ...]) -> str:
    """Arguments as they would be written."""
    return f"`({', '.join(map(repr, values))})`" if values else "a call without arguments"


def environment_page() -> str:
    """Every environment variable, with its default and when it is read."""
    parts = [
        "# Environment variables",
        MADE,
        "What a variable says holds unless the program says otherwise; `POPLAR_ENGINE_OPTIONS` alone wins over code. "
        "`poptorch doctor` lists those that are set.",
    ]
    for variable in environment.VARIABLES:
        default = "nothing" if variable.default is None else f"`{plain(variable.default)}`"
        facts = [
            f"- Value: {variable.accepts}",
            f"- Default: {default}",
            f"- Read at: {variable.read_at}",
        ]
        parts.append(f"## {variable.name}\n\n{variable.doc}\n\n" + "\n".join(facts))
    return "\n\n".join(parts) + "\n"


def plain(value: object) -> object:
    """A default as it would be written in a shell."""
    return int(value) if isinstance(value, bool) else value


def main(arguments: list[str]) -> int:
    assert {row.group for row in OPTIONS} == GROUPS.keys()
    wrong = []
    for name, text in {"options.md": options_page(), "environment.md": environment_page()}.items():
        target = DOCS / name
        if "--check" not in arguments:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            wrong.append(name)
    if wrong:
        print(f"{', '.join(wrong)} out of date: run scripts/generate_reference.py", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
