"""Names with an underscore belong to their own object: in the rooms below, no object uses those of another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "poptorch"
ROOMS = ("compiler", "executor", "host", "runtime")

OPTIONS = {
    "_Popart": "the original's own name for the backend settings",
    "_execution_strategy": "an option without a public reader, as in the original",
    "_show_compilation_progress_bar": "an option without a public reader, as in the original",
    "_relax_optimizer_checks": "an option without a public reader, as in the original",
    "_tracing_requested": "an option without a public reader",
    "_source_location_excludes": "an option without a public reader, as in the original",
    "_module_namescope_enabled": "an option without a public reader, as in the original",
    "_freeze": "options are frozen by the executor, not by users",
    "_unfreeze": "options from a file may be edited once more",
}
TORCH = {
    "_op": "the callable of an operator overload",
    "_schema": "the schema of an operator overload",
    "_opname": "the name of an operator overload",
    "_cdata": "the address of a storage",
    "_use_count": "how many owners a tensor has",
    "_version": "how often a tensor was written",
    "_metadata": "the versions of modules in a state dictionary",
}
OF_TORCH_MODULES = {"_parameters", "_buffers", "_modules", "_flat_weights", "_opt_called", "_version"}
"""Names of torch that tests compare before and after, and that classes of ours have as well."""

TESTS_ALLOWED = {
    ("options/test_backend.py", "_validateOptions"): "a public name of the original's",
    ("integrations/test_transformers_config.py", "_debugGetPopartIR"): "a name of the original's",
    ("mistakes/test_likely_mistakes.py", "_repr_html_"): "what notebooks ask objects for",
    ("test_errors.py", "_throwTestError"): "a public name of the original's",
    ("options/test_containers.py", "_mine"): "of a class of the test's own",
    ("integrations/test_callbacks.py", "_callbacks"): "the test measures the question that each call asks",
}
"""Private names that tests use of another room after all, with the reason."""

ALLOWED = {
    ("executor/executor.py", "_user_model"): "an executor that is wrapped again; libraries know this name",
}
"""Private names of one of our own classes that another object may use after all, with the reason."""


def outside_names(tree: ast.Module) -> set[str]:
    """What a module imports from other packages, and the short name for torch's operators."""
    names = {"aten"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("poptorch"):
            names |= {alias.asname or alias.name for alias in node.names}
    return names - {"poptorch"}


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, text and name of each use of a private name of another object."""
    tree = ast.parse(source)
    outside = outside_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("poptorch."):
            yield from ((node.lineno, f"import {a.name}", a.name) for a in node.names if is_private(a.name))
        if not isinstance(node, ast.Attribute) or not is_private(node.attr):
            continue
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if not own and root_of(node.value) not in outside and node.attr not in {**OPTIONS, **TORCH}:
            yield node.lineno, ast.unparse(node), node.attr


@pytest.mark.parametrize("room", ROOMS)
def test_no_object_uses_private_names_of_another(room: str) -> None:
    faults = []
    for path in sorted((PACKAGE / room).rglob("*.py")):
        short = path.relative_to(PACKAGE).as_posix()
        uses = private_uses(path.read_text(encoding="utf-8"))
        faults += [f"{short}:{line}: {text}" for line, text, name in uses if (short, name) not in ALLOWED]
    assert not faults, "give it a public name, or a method that does what is needed:\n" + "\n".join(faults)


def test_every_exception_is_in_use() -> None:
    used = {(path, name) for path, _ in ALLOWED for _, _, name in private_uses((PACKAGE / path).read_text("utf-8"))}
    assert set(ALLOWED) <= used
    text = "".join(path.read_text("utf-8") for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))
    assert [name for name in {**OPTIONS, **TORCH} if f".{name}" not in text] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("owner._identity", ["_identity"]),
        ("self._runner._bound", ["_bound"]),
        ("found()._state", ["_state"]),
        ("from poptorch.runtime import gantt\ngantt._rows()", ["_rows"]),
        ("from poptorch.runtime.gantt import _rows", ["_rows"]),
        ("self._bound", []),
        ("import torch\ntorch._C._set_grad_enabled(False)", []),
        ("target._schema", []),
        ("options._Popart.options", []),
        ("module.__dict__", []),
    ],
)
def test_the_check_sees_what_it_should(source: str, expected: list[str]) -> None:
    assert [name for _, _, name in private_uses(source)] == expected


# -- tests ------------------------------------------------------------------------------------------------------------

TESTS = Path(__file__).resolve().parent


def room_of(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py").removeprefix("test_")


def made_names(tree: ast.Module) -> set[str]:
    """The private names that a module makes: attributes, variables, functions, classes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
    return set(filter(is_private, found))


def replaced_names(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Private names that are replaced by their text: ``monkeypatch.setattr(module, "_name", ...)``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or len(node.args) < 2:
            continue
        name = node.args[1]
        if node.func.attr in ("setattr", "delattr") and isinstance(name, ast.Constant) and isinstance(name.value, str):
            last = name.value.rpartition(".")[2]
            if is_private(last):
                yield node.lineno, ast.unparse(node.args[0]) + "." + last, last


def test_tests_use_private_names_of_their_own_room_only() -> None:
    makers: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in made_names(ast.parse(path.read_text(encoding="utf-8"))):
            makers.setdefault(name, set()).add(room_of(path, PACKAGE))
    faults = []
    for path in sorted(TESTS.rglob("*.py")):
        source, short = path.read_text(encoding="utf-8"), path.relative_to(TESTS).as_posix()
        for line, text, name in [*private_uses(source), *replaced_names(ast.parse(source))]:
            foreign = name in makers and room_of(path, TESTS) not in makers[name]
            if foreign and name not in OF_TORCH_MODULES and (short, name) not in TESTS_ALLOWED:
                faults.append(f"tests/{short}:{line} uses {text} of {', '.join(sorted(makers[name]))}")
    assert not faults, "Give the room a public name for what its tests and others need:\n" + "\n".join(faults)
