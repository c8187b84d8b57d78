"""Compiling custom operators."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from poptorch import environment
from poptorch.errors import createPoptorchError
from poptorch_files import made_by_another, quietly_replaced

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC")


def includePath() -> str:
    """The directory to pass to the compiler with ``-I`` so that it finds ``poptorch/custom_op.hpp``.

    >>> from pathlib import Path
    >>> Path(includePath(), "poptorch", "custom_op.hpp").is_file()
    True
    """
    return str(Path(__file__).resolve().parents[2] / "include")


def buildCustomOp(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str] | None = None,
    flags: Sequence[str] = (),
    compiler: str | None = None,
    load: bool = True,
) -> str:
    """Compile C++ ``sources`` to ``lib<name>.so`` in ``directory``, load it, and return its path.

    The default directory is that of the first source. Nothing is compiled when the library is already there
    and made from the same sources, flags and header by the same compiler. Without ``compiler`` that is ``$CXX``, or the
    first of c++, g++ and clang++ that exists. Its flags are ours, then ``$CXXFLAGS``, then ``flags``: later ones win.

    >>> path = buildCustomOp("nothing", [])
    Traceback (most recent call last):
    ...
    poptorch.errors.Error: 'poptorch_py_error': buildCustomOp: no sources for 'nothing'.
    """
    paths = [Path(sources)] if isinstance(sources, (str, os.PathLike)) else [Path(source) for source in sources]
    if not paths:
        raise createPoptorchError(f"buildCustomOp: no sources for {name!r}.")
    for path in paths:
        if not path.is_file():
            raise createPoptorchError(f"buildCustomOp: the source {str(path)!r} does not exist.")
    folder = Path(directory) if directory is not None else paths[0].resolve().parent
    suffix = "dylib" if sys.platform == "darwin" else "so"
    command = [*_compiler(compiler), *_FLAGS, *_words(environment.CXXFLAGS)]
    digest = _digest(paths, [*command, *flags])
    library = folder / f"lib{name}.{suffix}"
    stamp = library.with_name(f".{library.name}.made_from")
    if not (library.is_file() and stamp.is_file() and stamp.read_text() == digest):
        library.parent.mkdir(parents=True, exist_ok=True)
        _compile(command, paths, library, flags)
        quietly_replaced(stamp, digest.encode())  # without it, the library is built again next time
    if load:
        _load(str(library.resolve()), digest)
    return str(library)


_loaded: dict[str, str] = {}


def _load(library: str, digest: str) -> None:
    if _loaded.setdefault(library, digest) != digest:
        raise createPoptorchError(
            f"buildCustomOp: {library} was built again from changed sources, but this process has loaded the "
            "earlier one and cannot exchange it. Start a new process, or give the new library another name."
        )
    ctypes.cdll.LoadLibrary(library)


def _digest(sources: Sequence[Path], command: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join([*command, sys.platform]).encode())
    for path in (*sources, Path(includePath(), "poptorch", "custom_op.hpp")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compiler(named: str | None) -> list[str]:
    """The command that starts the compiler: the one named in code, that of the environment, or any that exists."""
    if named is not None:
        return [named]
    words = _words(environment.CXX)
    if words:
        if shutil.which(words[0]) is None:
            raise createPoptorchError(
                f"buildCustomOp: the compiler {words[0]!r}, named by the environment variable CXX, was not found. Set "
                "CXX to a C++ compiler, or unset it."
            )
        return words
    found = next(filter(shutil.which, _COMPILERS), None)
    if found is None:
        raise createPoptorchError(
            f"buildCustomOp: no C++ compiler found (looked for {', '.join(_COMPILERS)}). Install one, name one in the "
            "environment variable CXX, or load a library that was built on another machine with "
            "ctypes.cdll.LoadLibrary."
        )
    return [found]


def _words(variable: environment.Variable[str | None]) -> list[str]:
    """The variable's text as a shell would divide it."""
    text = variable.read() or ""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise createPoptorchError(
            f"buildCustomOp: the environment variable {variable.name} is {text!r}: {error}."
        ) from error


def _compile(start: Sequence[str], sources: Sequence[Path], library: Path, flags: Sequence[str]) -> None:
    # Built next to its place and renamed, so that another process never sees half a library.
    with made_by_another(library) as unfinished:
        command = [*start, f"-I{includePath()}", *map(str, sources), "-o", str(unfinished), *flags]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise createPoptorchError(f"buildCustomOp: the compiler {start[0]!r} does not start: {error}") from error
        if result.returncode:
            output = (result.stdout + result.stderr).strip() or f"no output, exit status {result.returncode}"
            raise createPoptorchError(f"buildCustomOp: {shlex.join(command)} failed:\n{output}")
