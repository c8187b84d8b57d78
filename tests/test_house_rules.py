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


BELOW_THE_EXECUTOR = {
    *("ambient", "capture", "compiler", "devices", "distributed", "executable", "host", "ipu_model", "ops", "optim"),
    *("placement", "program", "replicas", "runtime", "schedule"),
}
READER = "compiler/request.py"


def readings(tree: ast.Module) -> set[str]:
    """What a module takes from options: attributes that are no calls of setters, and parameters of any type."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in ("options", "opts") and node.annotation is not None:
            if ast.unparse(node.annotation) == "Any":
                found.add(f"{node.arg}: Any")
        elif isinstance(node, ast.Attribute) and id(node) not in called and isinstance(node.ctx, ast.Load):
            holder = node.value
            name = holder.id if isinstance(holder, ast.Name) else getattr(holder, "attr", "")
            if name in ("options", "opts") and not is_called(node, tree, called):
                found.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            found |= {ast.unparse(node)} if ast.unparse(node.args[0]).endswith(("options", "opts")) else set()
    return found


def is_called(node: ast.Attribute, tree: ast.Module, called: set[int]) -> bool:
    """Whether the attribute is a group of options, one of whose setters is called."""
    return any(isinstance(n, ast.Attribute) and n.value is node and id(n) in called for n in ast.walk(tree))


def test_below_the_executor_only_the_request_reads_options() -> None:
    package = ROOT / "src" / "poptorch"
    readers = {}
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        if name.partition("/")[0].removesuffix(".py") in BELOW_THE_EXECUTOR and name != READER:
            readers[name] = readings(ast.parse(path.read_text(encoding="utf-8")))
    assert {name: found for name, found in readers.items() if found} == {}, f"let {READER} make settings of them"


def test_who_reads_options_is_seen() -> None:
    read = {"options.a", "opts.b", "self.options.c", "getattr(options, 'd')", "options: Any"}
    text = "\n".join(["def f(options: Any): ...", *sorted(read - {"options: Any"})])
    assert readings(ast.parse(text)) == read
    assert readings(ast.parse("options.Training.gradientAccumulation(2)\noptions.replicationFactor(2)")) == set()


def test_the_trace_of_an_engine_has_one_writer() -> None:
    package = ROOT / "src" / "poptorch"
    writers = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            texts = [ast.unparse(t) for t in targets if isinstance(t, ast.Attribute) and t.attr == "trace"]
            if any(text.endswith("engine.trace") or path.name == "engine.py" for text in texts):
                writers.add(path.relative_to(package).as_posix())
    assert writers == {"runtime/engine.py"}, "let others listen: Listeners.listen, Listeners.also"
