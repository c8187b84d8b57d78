"""Where compiled code outlives its process: the executable cache of the options, and a folder beside Inductor's.

The *executable cache* (``Options.enableExecutableCaching``) has one file for each graph, with all code that was
compiled for it. The *code folder* lies in the directory in which Inductor keeps what it compiled, and serves
programs whose options name no cache. A file that is damaged, or made by another release, is replaced with a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poptorch._logging import logger
from poptorch._version import __version__
from poptorch.compiler.device_program import DeviceProgram
from poptorch.errors import Error
from poptorch.executable import file as container
from poptorch.executable.file import File
from poptorch.executable.identity import identity
from poptorch.host.store.code_store import CodeStore, Store, StoredCode, surroundings
from poptorch.program.fingerprint import digest

EXTENSION = ".poptorch"


def sections_of(store: CodeStore) -> dict[str, bytes | str]:
    """The sections of a file that holds this code."""
    sections: dict[str, bytes | str] = {}
    for key, stored in store.known.items():
        sections |= _sections(key, stored)
    return sections


def _sections(key: str, stored: StoredCode) -> dict[str, bytes | str]:
    return {f"code/{key}": stored.text, **{f"blob/{name}": data for name, data in stored.blobs.items()}}


class FileStore:
    """The code in one file, for reading."""

    def __init__(self, file: File) -> None:
        self._file = file

    def find(self, key: str) -> StoredCode | None:
        if f"code/{key}" not in self._file:
            return None
        text = self._file.text(f"code/{key}")
        content = json.loads(text)
        names = [] if content is None else content["blobs"]
        return StoredCode(text, {name: self._file.bytes(f"blob/{name}") for name in names})

    def keep(self, key: str, stored: StoredCode) -> None:
        """Exported files stay as they are."""

    def finish(self) -> None:
        """Likewise."""

    def __str__(self) -> str:
        return self._file.path


class Folder:
    """A directory with one file for each entry."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _file(self, key: str) -> Path:
        return self._path / key[:2] / f"{key}{EXTENSION}"

    def find(self, key: str) -> StoredCode | None:
        path = self._file(key)
        return FileStore(File(path)).find(key) if path.exists() else None

    def keep(self, key: str, stored: StoredCode) -> None:
        path = self._file(key)
        if not path.exists() or not _is_sound(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            container.write(path, _sections(key, stored))

    def finish(self) -> None:
        """Everything was written at once."""

    def __str__(self) -> str:
        return str(self._path)


def _is_sound(path: Path) -> bool:
    try:
        file = File(path)
        for name in file.names():
            file.bytes(name)
    except Error:
        return False
    return True


class CacheEntry:
    """The file of one graph in the executable cache."""

    def __init__(self, directory: str, device: DeviceProgram) -> None:
        parts = {name: value for name, value in identity(device).items() if name != "loop"}
        self.path = Path(directory) / f"{digest([parts, surroundings()])}{EXTENSION}"
        self._metadata = {"poptorch": __version__, "identity": parts, "cache": True}
        self._program = str(device.program)
        self._new: dict[str, StoredCode] = {}
        self._file = self._opened()

    def _opened(self) -> File | None:
        if not self.path.exists():
            return None
        try:
            file = File(self.path)
            if file.json("metadata") != self._metadata:
                raise file.damaged("its metadata are not those of the graph that its name stands for")
        except Error as problem:
            logger.warning("The cached executable is made anew: %s", problem.message)
            return None
        logger.info("Executable found in the cache: %s", self.path)
        return file

    def find(self, key: str) -> StoredCode | None:
        return None if self._file is None else FileStore(self._file).find(key)

    def keep(self, key: str, stored: StoredCode) -> None:
        if self._file is None or f"code/{key}" not in self._file or not _is_sound(self.path):
            self._new[key] = stored

    def finish(self) -> None:
        """Write what is new. Code that another process added meanwhile stays."""
        if self._file is not None and not self._new:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        sections: dict[str, Any] = {"metadata": self._metadata, "program": self._program}
        with contextlib.suppress(Error, OSError):
            if self.path.exists() and self._file is not None:
                other = File(self.path)
                sections |= {name: other.bytes(name) for name in other.names() if name.startswith(("code/", "blob/"))}
        for key, stored in self._new.items():
            sections |= _sections(key, stored)
        container.write(self.path, sections)
        self._new.clear()
        self._file = File(self.path)

    def __str__(self) -> str:
        return str(self.path)


def local_folder() -> Folder | None:
    """The code folder; ``None`` where Inductor is told to use no caches."""
    from torch._inductor import config
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return None if config.force_disable_caches else Folder(Path(cache_dir()) / "poptorch")


def store_for(device: DeviceProgram, directory: str | None, exported: File | None, *, locally: bool) -> CodeStore:
    """Where a program finds its native code, the most specific place first; ``locally``: also in the local folder."""
    stores: list[Store] = []
    if exported is not None:
        stores.append(FileStore(exported))
    if directory is not None:
        stores.append(CacheEntry(directory, device))
    if locally:
        folder = local_folder()
        stores += [] if folder is None else [folder]
    return CodeStore(stores)


# -- several processes ---------------------------------------------------------------------------------------------


def prepare_directory(directory: str) -> None:
    """The directory exists and can be written to."""
    with contextlib.suppress(OSError):
        os.makedirs(directory, exist_ok=True)
    if not os.path.isdir(directory) or not os.access(directory, os.W_OK):
        raise AssertionError(f"Cache folder {directory} is not writable")


@contextlib.contextmanager
def one_at_a_time(directory: str, model: object, processes: int) -> Iterator[None]:
    """Let one of several processes compile a model, while the others wait to find it in the cache.

    The system releases the lock of a process that dies. The last process to come takes the file away.
    """
    import fcntl

    prepare_directory(directory)
    name = hashlib.md5(repr(model).encode(), usedforsecurity=False).hexdigest()
    path = Path(directory) / f"{name}.lock"
    with _open_and_lock(path, fcntl) as file:
        logger.debug("cache file locked: %s", path)
        try:
            yield
        finally:
            file.seek(0)
            came = int(file.read() or 0) + 1
            if came >= processes:
                path.unlink(missing_ok=True)
            else:
                file.seek(0)
                file.truncate()
                file.write(str(came))
                file.flush()
            logger.debug("released the cache lock: %s", path)


@contextlib.contextmanager
def _open_and_lock(path: Path, fcntl: Any) -> Iterator[Any]:
    while True:
        with open(path, "a+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The owner may have removed the file: then others use a new one.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                yield file
                return
