"""Classes below the executor have names of their own: a name in a message or a search means one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "poptorch"
ABOVE = {"cli", "compat", "data", "debug", "executor", "experimental", "integrations", "options", "report"}
"""Rooms at the executor's side, or above it."""


def test_class_names_are_unique_below_the_executor() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name.partition("/")[0].removesuffix(".py") not in ABOVE:
            body = ast.parse(path.read_text(encoding="utf-8")).body
            for node in body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(name)
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert shared == {}, "give each a name of its own"
