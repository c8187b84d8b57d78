"""The Python files that a model is written in: whether they are those of the export."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from poptorch.program.opinfo import info_of
from poptorch.program.program import Program

_FIXED = ("torch", "poptorch", "builtins")
"""Packages whose versions are compared, not their files."""


def sources_of(model: nn.Module, program: Program) -> dict[str, dict[str, str]]:
    """Hashes of what defines the classes of a model, and of the files with the lines of its operations."""
    classes = {kind.__module__ for module in model.modules() for kind in type(module).__mro__}
    lines = {info.source.file for node in program.operations() if (info := info_of(node)).source is not None}
    return {
        "modules": {name: _hash_of_module(name) for name in sorted(classes) if name.partition(".")[0] not in _FIXED},
        "files": {file: _hash(file) for file in sorted(lines)},
    }


def changed_sources(model: nn.Module, known: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Modules and files that are not what they were, by name; modules that the export did not know, too."""
    classes = {kind.__module__ for module in model.modules() for kind in type(module).__mro__}
    missing = {name for name in classes if name.partition(".")[0] not in _FIXED} - set(known["modules"])
    modules = [name for name, expected in known["modules"].items() if _hash_of_module(name) != expected]
    return [*sorted(missing), *modules, *(file for file, expected in known["files"].items() if _hash(file) != expected)]


def _hash_of_module(name: str) -> str:
    file = getattr(sys.modules.get(name), "__file__", None)
    return "" if file is None else _hash(file)


def _hash(file: str) -> str:
    """SHA-256 of a file; nothing for one that is not there."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return ""


__all__ = ["changed_sources", "sources_of"]
