"""Kernels that Inductor compiled, as data: shared libraries and the Python text that calls them.

Inductor leaves a Python module for each graph. Its text contains the C++ source of every kernel, to be compiled or
found in a cache when the module is loaded; before that, Inductor itself is imported and the processor is probed by
other processes, which takes seconds. Here the text is kept without the sources, the libraries beside it, and loading
them needs neither.
"""

from __future__ import annotations

import ast
import builtins
import dis
import hashlib
import importlib.machinery
import importlib.util
import os
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from poptorch.libraries import onednn

_LOADERS = frozenset({"cpp_pybinding", "load_pybinding"})
"""Inductor's functions that compile a kernel and load it."""

_UNUSED = frozenset({"get_args", "benchmark_compiled_module"})
_SIMPLE = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution"})
"""What Inductor's ``extern_kernels`` merely renames."""

_MARK = "__poptorch_restored__"


class NotPortable(Exception):
    """Something that cannot be written down, or what was written cannot be used here; its text says what."""


def _namespace(value: Any) -> dict[str, Any]:
    function = getattr(value, "__func__", value)
    found: dict[str, Any] = getattr(function, "__globals__", {})
    return found


def is_kernel(value: Any) -> bool:
    """Whether a function was made by Inductor."""
    namespace = _namespace(value)
    return "call" in namespace and namespace["call"] == value and not namespace["__name__"].startswith("poptorch.")


def describe(kernel: Any, keep: Callable[[bytes], str]) -> dict[str, Any]:
    """The data of a kernel; ``keep`` stores bytes and names them."""
    namespace = _namespace(kernel)
    if _MARK in namespace:
        raise NotPortable("a kernel that was restored")
    text = Path(namespace["__file__"]).read_text()
    source, names = _without_sources(text)
    libraries = []
    for name in names:
        function = namespace[name]
        library = getattr(function, "__self__", None)
        if not isinstance(library, types.ModuleType) or library.__file__ is None:
            raise NotPortable(f"the kernel {name}, which is not in a library")
        libraries.append([name, function.__name__, keep(Path(library.__file__).read_bytes())])
    constants = []
    for name, value in namespace.items():
        if isinstance(value, torch.Tensor):
            if value.is_mkldnn or type(value) is not torch.Tensor:
                raise NotPortable(f"the constant {name}")
            data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            constants.append([name, str(value.dtype).removeprefix("torch."), list(value.shape), keep(data)])
    known = {*names, *(c[0] for c in constants), *_PROVIDED}
    missing = _free_names(compile(source, "kernel", "exec")) - known - set(vars(builtins))
    if missing:
        raise NotPortable(f"a kernel that uses {', '.join(sorted(missing))}")
    return {"source": source, "libraries": libraries, "constants": constants}


def restore(data: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Any:
    """The kernel that was described."""
    namespace: dict[str, Any] = {"__name__": "poptorch_kernel", _MARK: True, **_PROVIDED}
    for name, entry, blob in data["libraries"]:
        namespace[name] = getattr(_library(blob, entry, blobs[blob]), entry)
    for name, dtype, shape, blob in data["constants"]:
        content = bytearray(blobs[blob])
        kind = getattr(torch, dtype)
        flat = torch.frombuffer(content, dtype=kind) if content else torch.empty(0, dtype=kind)
        namespace[name] = flat.reshape(shape)
    digest = hashlib.sha256(data["source"].encode()).hexdigest()
    exec(compile(data["source"], f"<native code {digest[:12]}>", "exec"), namespace)
    return namespace["call"]


_loaded: dict[str, types.ModuleType] = {}


def _library(digest: str, entry: str, data: bytes) -> types.ModuleType:
    """The library as an extension module. Its file is gone once it is loaded: memory holds what is needed."""
    if digest not in _loaded:
        # Where kernels find torch's function that gives the address of a tensor's data.
        address = torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
        os.putenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", str(address))
        with tempfile.TemporaryDirectory(prefix="poptorch-") as folder:
            path = Path(folder) / f"{digest[:16]}.so"
            path.write_bytes(data)
            name = f"poptorch_kernel_{digest}.{entry}"
            loader = importlib.machinery.ExtensionFileLoader(name, str(path))
            spec = importlib.util.spec_from_file_location(name, path, loader=loader)
            assert spec is not None
            try:
                module = importlib.util.module_from_spec(spec)
                loader.exec_module(module)
            except (ImportError, OSError) as error:
                raise NotPortable(f"a library that cannot be loaded: {error}") from error
        _loaded[digest] = module
    return _loaded[digest]


class _ExternKernels:
    """Library functions as Inductor names them; it is imported for rare ones only."""

    def __init__(self) -> None:
        for name in _SIMPLE:
            setattr(self, name, getattr(torch, name))
        self.poptorch_matmul = onednn.matmul_out

    def __getattr__(self, name: str) -> Any:
        from torch._inductor import lowering  # noqa: F401  fills the namespace
        from torch._inductor.select_algorithm import extern_kernels

        return getattr(extern_kernels, name)


_PROVIDED: dict[str, Any] = {"extern_kernels": _ExternKernels()}
"""What restored text finds instead of importing it."""


# -- the text ------------------------------------------------------------------------------------------------------


def _without_sources(text: str) -> tuple[str, list[str]]:
    """The module without C++ sources and whatever serves them, and the names of its kernels."""
    tree = ast.parse(text)
    kernels = []
    body = []
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _loads_kernel(statement.value):
            kernels.append(ast.unparse(statement.targets[0]))
        elif not _is_left_out(statement):
            body.append(statement)
    tree.body = _needed(body)
    return ast.unparse(tree), kernels


def _loads_kernel(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _LOADERS


def _is_left_out(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return statement.name in _UNUSED
    if isinstance(statement, ast.If):
        return "__main__" in ast.unparse(statement.test)
    return any(isinstance(n, ast.Name) and n.id == "async_compile" for n in ast.walk(statement))


def _needed(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements without imports and simple definitions that nothing uses."""
    while True:
        used = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        kept = [s for s in body if not (names := _defined(s)) or (names & (used | {"call"})) - set(_PROVIDED)]
        if len(kept) == len(body):
            return kept
        body = kept


def _defined(statement: ast.stmt) -> set[str]:
    """The names that an import or a plain assignment introduces."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Assign) and all(isinstance(t, ast.Name) for t in statement.targets):
        return {t.id for t in statement.targets if isinstance(t, ast.Name)}
    return set()


def _free_names(code: types.CodeType) -> set[str]:
    """Global names that the code reads and does not define."""
    read, written = set(), set()
    for inner in _all_codes(code):
        for step in dis.get_instructions(inner):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                read.add(step.argval)
            elif step.opname in ("STORE_NAME", "STORE_GLOBAL"):
                written.add(step.argval)
    return read - written - {"__name__", "__module__", "__qualname__"}


def _all_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _all_codes(constant)


@cache
def processor() -> str:
    """What libraries are compiled for: they use every instruction that this processor has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        import platform

        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    facts = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in reversed(lines)}
    return "\n".join(f"{name}: {facts[name]}" for name in wanted if name in facts)
