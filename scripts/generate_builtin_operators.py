"""Write the tables of docs/builtin-operators.md from the code, or check them with ``--check``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from poptorch.ops.builtin import Definition, definitions
from poptorch.ops.builtin.attributes import REQUIRED

PAGE = Path(__file__).resolve().parent.parent / "docs" / "builtin-operators.md"
BEGIN, END = "<!-- begin: {} -->", "<!-- end: {} -->"


def inputs_of(definition: Definition) -> str:
    """The inputs; those in brackets may be left out."""
    names = []
    for p in inspect.signature(definition.body).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            names.append(f"{p.name} …")
        elif p.kind is p.POSITIONAL_OR_KEYWORD:
            names.append(p.name if p.default is p.empty else f"[{p.name}]")
    return ", ".join(names) or "–"


def attributes_of(definition: Definition) -> str:
    """The attributes with their defaults; those without one are bold."""
    texts = []
    for name, attribute in definition.attributes.items():
        if not attribute.kind and attribute.default is None and name != "value":
            continue  # refused
        if attribute.default is REQUIRED:
            texts.append(f"**`{name}`**")
        elif attribute.default is None:
            texts.append(f"`{name}`")
        else:
            texts.append(f"`{name}` = {_shown(attribute.default)}")
    return ", ".join(texts) or "–"


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else str(value)


def table(domain: str) -> Iterator[str]:
    """The rows for one domain."""
    versions = domain == "ai.onnx"
    yield f"| operator | {'from version | ' if versions else ''}inputs | outputs | attributes |"
    yield f"|---|{'---|' if versions else ''}---|---|---|"
    for d in definitions():
        if d.key.domain == domain:
            since = f"{d.key.since} | " if versions else ""
            outputs = str(d.outputs) if d.outputs else "as many as there are" if d.key.name != "Abort" else "0"
            yield f"| `{d.key.name}` | {since}{inputs_of(d)} | {outputs} | {attributes_of(d)} |"


def written(text: str) -> str:
    """The page with its tables as the code says."""
    for domain in ("ai.graphcore", "ai.onnx"):
        begin, end = BEGIN.format(domain), END.format(domain)
        before, _, rest = text.partition(begin)
        text = "\n".join([before + begin, "", *table(domain), "", end]) + rest.partition(end)[2]
    return text


def main() -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = written(before)
    if "--check" in sys.argv[1:]:
        if before != after:
            print(f"{PAGE.name} is out of date: run python scripts/{Path(__file__).name}", file=sys.stderr)
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
