"""Imports go one way: each room may use the rooms named here and no others.

A room is a module or a package directly under ``poptorch``, or a part of such a package that has a row of its own
(``host.native``): a module belongs to the room with the longest matching name. Imports inside functions count like any
other; those under ``if TYPE_CHECKING`` do not, because they do not exist when the program runs.
"""

from __future__ import annotations

import ast
import graphlib
import itertools
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from poptorch.compiler.pipeline import DEVICE_PASSES
from poptorch.host.build import HOST_STEPS
from poptorch.host.native.building import NATIVE_STEPS
from poptorch.host.native.passes import KERNEL_PASSES

SRC = Path(__file__).resolve().parent.parent / "src"

# From the bottom up: each of these may use those before it.
FOUNDATION = (
    "_version",
    "frames",
    "figures",
    "_logging",
    "errors",
    "error_catalogue",
    "enums",
    "ambient",
    "environment",
    "launchers",
    "encoding",
    "work",
    "arg_parsers",
    "hooks",
    "printing",
    "testing",
    "interrupts",
    "startup",
    "replicas",
    "libraries",
)

ROAD = {"options", "placement", "ops", "optim", "program", "schedule", "devices"}
"""What the rooms that compile and run a program stand on."""

ALLOWED: dict[str, set[str]] = {
    **{room: set(FOUNDATION[:place]) for place, room in enumerate(FOUNDATION)},
    # what programs say about themselves
    "placement": {*FOUNDATION},
    "autocasting": {*FOUNDATION},
    "options": {*FOUNDATION, "placement", "autocasting"},
    "profiling": {*FOUNDATION, "options"},
    "ops": {*FOUNDATION, "options", "placement"},
    "optim": {*FOUNDATION, "options"},
    "data": {*FOUNDATION, "options", "profiling"},
    # what everything about a program stands on
    "program": {*FOUNDATION, "ops"},
    "schedule": {*FOUNDATION},
    "devices": {*FOUNDATION},
    # the road of a program: capture writes it, the compiler lowers it, the host generates code, the runtime runs that
    "capture": {*FOUNDATION, "options", "placement", "ops", "optim", "autocasting", "program"},
    "compiler.passes": {*FOUNDATION, "placement", "ops", "program"},
    "compiler": {*FOUNDATION, *ROAD, "profiling", "capture", "compiler.passes"},
    "executable": {*FOUNDATION, "program", "compiler.passes", "compiler"},
    "runtime.values": {*FOUNDATION, "program"},
    "host.cost": {*FOUNDATION, "ops", "program"},
    "host.grouping": {*FOUNDATION, "ops", "placement", "program", "compiler", "executable", "host.cost"},
    "host.running": {*FOUNDATION, "program", "executable", "runtime.values"},
    "host.factoring": {*FOUNDATION, "program"},
    "host.interpret": {
        *FOUNDATION,
        "ops",
        "program",
        "executable",
        "runtime.values",
        "host.running",
        "host.factoring",
    },
    "host.native": {
        *FOUNDATION,
        "ops",
        "program",
        "executable",
        "runtime.values",
        "host.interpret",
        "host.running",
        "host.factoring",
    },
    "host.store": {*FOUNDATION, "program", "compiler", "executable", "host.native", "host.running"},
    "host": {
        *FOUNDATION,
        *ROAD,
        "compiler",
        "compiler.passes",
        "executable",
        "runtime.values",
        "host.cost",
        "host.grouping",
        "host.interpret",
        "host.native",
        "host.store",
        "host.running",
        "host.factoring",
    },
    "host.native.building": {
        *FOUNDATION,
        *ROAD,
        "compiler",
        "executable",
        "host",
        "host.factoring",
        "host.native",
        "host.store",
    },
    "runtime": {
        *FOUNDATION,
        "profiling",
        "program",
        "schedule",
        "devices",
        "compiler",
        "compiler.passes",
        "executable",
        "runtime.values",
    },
    "ipu_model": {*FOUNDATION, *ROAD, "profiling", "compiler", "compiler.passes"},
    "report": {*FOUNDATION, "options", "profiling", "ipu_model"},
    "report.page": {*FOUNDATION, "report", "ipu_model"},
    "distributed": {*FOUNDATION},
    # names that the original's native module offers
    "poptorch_core": {*FOUNDATION, "options"},
    # private names of the original that libraries use
    "compat": {*FOUNDATION, "placement", "ops"},
}

FACADES = {
    "__init__": "the list of public names",
    "__main__": "starts the commands for the shell",
    "cli": "commands for the shell",
    "executor": "ties capture, compiler, host and runtime together",
    "debug": "looks inside compiled models",
    "experimental": "early names for the executor",
    "eager": "early names for the executor",
    "integrations": "adapters for the libraries around PyTorch",
    "_impl": "private names of the original that libraries use",
    "_poplar_executor": "private names of the original that libraries use",
    "_args_parser": "private names of the original that libraries use",
    "_utils": "private names of the original that libraries use",
}
"""Modules above all rooms: they may use any room, and no room may use them."""

USES_PUBLIC_NAMES = {
    "poptorch.options.config_file": "statements of a configuration file speak of `poptorch`",
}
"""Modules that may import `poptorch` itself; from inside the package that is normally a back edge."""


class Import(NamedTuple):
    """One import of something of the package, by one of its modules."""

    importer: str
    target: str
    where: str


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    parts = module.split(".")[1:]
    for length in range(len(parts), 1, -1):
        if ".".join(parts[:length]) in ALLOWED:
            return ".".join(parts[:length])
    return parts[0] if parts else "__init__"


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def walk_running_code(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            for branch in child.orelse:  # type: ignore[attr-defined]
                yield from walk_running_code(branch)
        else:
            yield child
            yield from walk_running_code(child)


def imports_of(path: Path, module: str | None = None, source: str | None = None) -> list[Import]:
    module = module or module_name(path)
    found = []
    for node in walk_running_code(ast.parse(source or path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
            parents = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        where = f"{path.name}:{node.lineno}"
        found += [Import(module, target, where) for target in targets if target.split(".")[0] == "poptorch"]
    return found


def fault(found: Import) -> str | None:
    """Why an import is not allowed, or ``None`` when it is."""
    importer, target = room_of(found.importer), room_of(found.target)
    if importer in FACADES or importer == target:
        return None
    line = f"{found.importer} ({found.where}) imports {found.target}"
    if importer not in ALLOWED:
        return f"{line}: '{importer}' is a new room, add it to ALLOWED in {Path(__file__).name}"
    if target in FACADES or target not in ALLOWED:
        if found.importer in USES_PUBLIC_NAMES:
            return None
        return f"{line}: a room may use no facade and none of the public names, import from the owning room"
    if target not in ALLOWED[importer]:
        return f"{line}: '{importer}' may use only {', '.join(sorted(ALLOWED[importer]))}"
    return None


def test_imports_go_one_way() -> None:
    modules = sorted((SRC / "poptorch").rglob("*.py"))
    assert modules
    faults = [reason for path in modules for found in imports_of(path) if (reason := fault(found))]
    assert not faults, "\n" + "\n".join(faults)


def test_every_room_has_a_row() -> None:
    children = (SRC / "poptorch").iterdir()
    rooms = {child.stem for child in children if child.suffix == ".py" or (child / "__init__.py").exists()}
    unknown = rooms - set(ALLOWED) - set(FACADES)
    assert not unknown, f"say in ALLOWED what {sorted(unknown)} may import"


def test_the_rules_themselves_have_no_cycle() -> None:
    order = tuple(graphlib.TopologicalSorter(ALLOWED).static_order())  # raises CycleError with the cycle
    assert order.index("errors") < order.index("options") < order.index("runtime")


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("poptorch.runtime.engine", "from poptorch.capture import tracer", "'runtime' may use only"),
        ("poptorch.capture.tracer", "import poptorch.runtime.engine", "'capture' may use only"),
        ("poptorch.capture.tracer", "def f():\n    from poptorch import runtime", "'capture' may use only"),
        ("poptorch.errors", "from . import options", "'errors' may use only"),
        ("poptorch.optim.sgd", "from poptorch import Options", "public names"),
        ("poptorch.optim.sgd", "import poptorch", "public names"),
        ("poptorch.ops.custom", "from poptorch.executor.executor import PoplarExecutor", "facade"),
        ("poptorch.newroom.a", "from poptorch import errors", "a new room"),
        ("poptorch.runtime.engine", "from poptorch.executable.format import load", None),
        ("poptorch.capture.tracer", "if TYPE_CHECKING:\n    from poptorch import runtime", None),
        ("poptorch.executor.executor", "from poptorch.runtime import engine", None),
        ("poptorch.options.root", "import torch\nfrom .table import OPTIONS", None),
    ],
)
def test_the_checker_sees_what_it_should(module: str, source: str, expected: str | None) -> None:
    path = SRC / (module.replace(".", "/") + ".py")
    (found,) = imports_of(path, module, source) or [Import(module, module, "")]
    reason = fault(found)
    assert (reason is None) if expected is None else (reason is not None and expected in reason)


# -- the page that describes the rooms -----------------------------------------------------------------------------

PAGE = SRC.parent / "docs" / "architecture.md"


def exists(room: str) -> bool:
    path = SRC / "poptorch" / room.replace(".", "/")
    return (path / "__init__.py").exists() or path.with_suffix(".py").exists()


def table(first_title: str) -> list[list[str]]:
    """The rows of the page's table whose first column has this title."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith(f"| {first_title} |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


def test_the_page_names_every_room_and_no_other() -> None:
    named = [room for row in table("room") for room in quoted(row[0])]
    assert sorted(named) == sorted(room for room in {*ALLOWED, *FACADES} - {"__init__"} if exists(room))


def test_the_page_says_what_each_room_may_import() -> None:
    for rooms, _, allowed in table("room"):
        for room in quoted(rooms):
            if room in FACADES:
                assert allowed == "any room"
            elif room not in FOUNDATION:
                expected = {other for other in ALLOWED[room] - {*FOUNDATION} if exists(other)}
                assert set(quoted(allowed)) == expected, room


def test_the_page_lists_the_passes_and_the_steps() -> None:
    assert table("compiler pass") == [[step.name, step.reason] for step in DEVICE_PASSES]
    assert table("host step") == [[step.name, step.reason] for step in HOST_STEPS]
    assert table("part of the native code") == [[step.name, step.reason] for step in NATIVE_STEPS]
    assert table("kernel pass") == [[step.name, step.reason] for step in KERNEL_PASSES]


def test_every_name_on_the_page_exists() -> None:
    names = set(re.findall(r"`(poptorch(?:\.\w+)+)", PAGE.read_text(encoding="utf-8")))
    assert names
    for name in sorted(names):
        pkgutil.resolve_name(name)  # raises if there is no such module, or no such name in it
