"""Rules about the source text itself: documented modules of a readable size, tidy changelog fragments."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import poptorch

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "src").rglob("*.py"))
MAX_LINES = 600


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=short)
def test_a_module_has_a_docstring_and_one_subject(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{short(path)} needs a docstring that says what it is about"
    if "Made by ``scripts/" in text[:200]:
        return
    lines = text.count("\n")
    assert lines <= MAX_LINES, f"{short(path)} has {lines} lines: give its second subject a module of its own"


def public_objects() -> dict[str, object]:
    public = {name: value for name, value in vars(poptorch).items() if not name.startswith("_")}
    return {name: it for name, it in public.items() if inspect.isroutine(it) or inspect.isclass(it)}


@pytest.mark.parametrize("name", sorted(public_objects()))
def test_a_public_function_or_class_has_a_docstring_of_its_own(name: str) -> None:
    documented = public_objects()[name].__doc__  # not inspect.getdoc: a base class must not speak for it
    assert documented, f"poptorch.{name} needs a docstring"


def test_changelog_fragments_follow_the_pattern() -> None:
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    pattern = re.compile(r"\+?[\w-]+\.(added|changed|fixed)\.md")
    wrong = [path.name for path in fragments if not pattern.fullmatch(path.name)]
    assert not wrong, f"see changelog.d/README.md: {wrong}"
    empty = [path.name for path in fragments if not path.read_text(encoding="utf-8").strip()]
    assert not empty


def imported(path: Path) -> set[str]:
    """The modules that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_only_the_rooms_of_native_code_know_inductor() -> None:
    users = {short(path) for path in MODULES if any(name.startswith("torch._inductor") for name in imported(path))}
    allowed = ("src/poptorch/host/native/", "src/poptorch/host/store/", "src/poptorch/cli/doctor.py")
    assert {user for user in users if not user.startswith(allowed)} == set()


def test_four_modules_read_the_environment() -> None:
    pattern = re.compile(r"\bos\.(environ|getenv)\b")
    package = ROOT / "src" / "poptorch"
    code = {path: re.sub(r"(?m)^\s*>>>.*$", "", path.read_text(encoding="utf-8")) for path in package.rglob("*.py")}
    examples = package / "error_catalogue"  # texts that are programs of users
    found = [path for path, text in code.items() if pattern.search(text) and examples not in path.parents]
    readers = {path.relative_to(package).as_posix() for path in found}
    assert readers == {"environment.py", "launchers.py", "_logging.py", "startup.py"}
