"""Where native code comes from: an earlier process left it, or it is compiled and left for later ones.

An entry is one host program. Its key says all that the program depends on: the graph with its shapes, the target, the
versions of this package, torch and Python, the settings of Inductor and the processor. Weights, learning rates and the
number of device iterations are not among them, so changing these compiles nothing. Of this package's own text, the
passes that make native code count (``host/native``): while they are being worked on, the version stays the same.
Everything else may change, because entries are read as data, whose form has a number
(:data:`~poptorch.host.store.written.FORMAT`).
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch

from poptorch._logging import logger
from poptorch._version import __version__
from poptorch.errors import Error
from poptorch.executable.host_code import Code
from poptorch.host.native.async_compile import prepare_compiler
from poptorch.host.native.effects import is_effectful, with_tokens
from poptorch.host.native.freezing import linear_operator
from poptorch.host.native.inductor import Target
from poptorch.host.native.random_keys import with_keys
from poptorch.host.running.rendering import code_of
from poptorch.host.store.kernel_files import NotPortable, processor
from poptorch.host.store.written import FORMAT, read, written
from poptorch.program.fingerprint import digest, program_digest, update_digest
from poptorch.program.opinfo import info_of
from poptorch.program.program import Program
from poptorch.program.update import UpdateProgram


@dataclass(frozen=True)
class StoredCode:
    """Native code as data; ``text`` is JSON."""

    text: str
    blobs: dict[str, bytes] = field(repr=False)

    @staticmethod
    def of(code: Code | None) -> StoredCode:
        """Write code down. ``None``, the answer that there is no code of this kind, is worth keeping, too."""
        if code is None:
            return StoredCode("null", {})
        if code.program is None:
            raise NotPortable("code without a program")
        content, blobs = written(code.program)
        return StoredCode(json.dumps({"program": content, "blobs": sorted(blobs)}), blobs)

    def code(self) -> Code | None:
        """The code, ready to run."""
        content = json.loads(self.text)
        if content is None:
            return None
        return code_of(read(content["program"], self.blobs))


class Store(Protocol):
    """Where native code is kept."""

    def find(self, key: str) -> StoredCode | None:
        """An entry, or ``None``; raises ``poptorch.Error`` if what is there is damaged."""

    def keep(self, key: str, stored: StoredCode) -> None:
        """Keep an entry."""

    def finish(self) -> None:
        """All code of a compilation have been asked for."""

    def __str__(self) -> str:
        """For messages."""


class NotStored(Exception):
    """Code that would have to be compiled."""


class CodeStore:
    """The native code of one executable."""

    def __init__(self, stores: Sequence[Store] = ()) -> None:
        self._stores = list(stores)
        self.known: dict[str, StoredCode] = {}
        """What was found or made, by key."""

        self.compiled = 0
        """How many entries had to be compiled."""

        self._compiles = True
        self._new: dict[str, Code | None] = {}  # not written down yet: their kernels may be on their way

    def __str__(self) -> str:
        return " or ".join(map(str, self._stores))

    def add(self, store: Store) -> None:
        """One more place, where it is looked first."""
        self._stores.insert(0, store)

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Compile nothing in here: what is not found raises :class:`NotStored`."""
        self._compiles = False
        try:
            yield
        finally:
            self._compiles = True

    def obtain(self, key: str, program: Program | None, make: Callable[[], Code | None]) -> Code | None:
        """The code for a key: found, or made now; what is made can run after :meth:`finish`."""
        for store in self._stores:
            found = self._found(store, key, program)
            if found is not None:
                stored, code = found
                logger.debug("Native code %s taken from %s", key[:12], store)
                self._keep(key, stored)
                return code
        if not self._compiles:
            raise NotStored(key)
        self.compiled += 1
        prepare_compiler()
        self._new[key] = code = make()
        return code

    def finish(self) -> None:
        """Nothing more is compiled for now, and everything is ready to run."""
        for key, code in self._new.items():
            try:
                self._keep(key, StoredCode.of(code))
            except NotPortable as reason:
                logger.debug("Native code %s cannot be kept for other processes: it contains %s", key[:12], reason)
        self._new.clear()
        for store in self._stores:
            _attempt(store, store.finish)

    def _keep(self, key: str, stored: StoredCode) -> None:
        self.known[key] = stored
        for store in self._stores:
            _attempt(store, partial(store.keep, key, stored))

    @staticmethod
    def _found(store: Store, key: str, program: Program | None) -> tuple[StoredCode, Code | None] | None:
        try:
            stored = store.find(key)
            if stored is None:
                return None
            if program is not None:
                _register_operators(program)
            return stored, stored.code()
        except Exception as problem:  # noqa: BLE001  whatever is wrong with it, there is a way without it
            text = problem.message if isinstance(problem, Error) else f"{type(problem).__name__}: {problem}"
            logger.warning("Native code in %s cannot be used and is compiled again: %s", store, text)
            return None


def _attempt(store: Store, action: Callable[[], None]) -> None:
    """A full disk, or a directory that was removed, must not stop a program that is compiled."""
    try:
        action()
    except OSError as error:
        logger.warning("Native code could not be kept in %s: %s", store, error)


def _register_operators(program: Program) -> None:
    """The operators with random keys and tokens come into being when a graph is rewritten to use them."""
    linear_operator()
    graph_module = program.graph_module
    if any(info_of(node).random is not None for node in program.operations()):
        graph_module = with_keys(graph_module)
    if is_effectful(graph_module.graph):
        with_tokens(graph_module)


def code_key(kind: str, program: Program | None, update: UpdateProgram | None, target: Target) -> str:
    """The identity of some code; ``kind`` tells the entries of one program apart."""
    return digest(
        {
            "kind": kind,
            "program": None if program is None else program_digest(program),
            "update": None if update is None else update_digest(update),
            "threads": target.threads,
            "entry": target.entry.value,
            "libraries": target.libraries.identity,
            "around": surroundings(),
        }
    )


def surroundings() -> dict[str, Any]:
    """What code depends on besides its program."""
    from torch._inductor import config

    settings = {name: repr(value) for name, value in config.save_config_portable().items()}
    return {
        "poptorch": [__version__, FORMAT, _passes()],
        "torch": [torch.__version__, str(torch.version.git_version)],
        "python": [sys.implementation.cache_tag, platform.machine()],
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "inductor": digest(settings),
        "flags": [
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.mkldnn.enabled,
            torch.get_float32_matmul_precision(),
        ],
    }


@cache
def _passes() -> str:
    """The identity of what makes native code."""
    text = hashlib.sha256()
    for path in sorted((Path(__file__).parents[1] / "native").glob("*.py")):
        text.update(path.name.encode() + path.read_bytes())
    return text.hexdigest()
