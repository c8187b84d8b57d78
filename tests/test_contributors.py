"""Pages for contributors: the commands, files, functions and variables that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from poptorch import environment, errors

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "contributors.md"]
FOLDERS = [ROOT, ROOT / "src" / "poptorch", ROOT / "docs"]
"""Where the names of files on these pages begin."""

MADE = {"site/", ".venv"}
"""What commands make."""


def code(page: Path) -> list[str]:
    """All that a page shows as code in its sentences."""
    return re.findall(r"`([^`\n]+)`", page.read_text())


def named_files(page: Path) -> list[str]:
    """The files and folders among it; a star stands for several files."""
    return [text for text in code(page) if re.fullmatch(r"[\w.*/-]*/[\w.*/-]*|[\w*-]+\.py", text) and text not in MADE]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_folders_exist(page: Path) -> None:
    names = named_files(page)
    assert len(names) > 5
    missing = [name for name in names if not any(list(folder.glob(name.rstrip("/"))) for folder in FOLDERS)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_in_the_makefile(page: Path) -> None:
    commands = {text.split()[1] for text in code(page) if text.startswith("make ")}
    assert commands
    assert commands <= targets()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_variables_exist(page: Path) -> None:
    known = {variable.name for variable in vars(environment).values() if hasattr(variable, "name")}
    assert {name for text in code(page) for name in re.findall(r"\bPOPTORCH_\w+", text)} <= known


def test_functions_that_raise_errors_exist() -> None:
    called = {text.partition("(")[0] for text in code(PAGES[1]) if "(" in text}
    assert called >= {"createPoptorchError", "backend_error", "misuse"}
    assert [name for name in called if not hasattr(errors, name)] == []
