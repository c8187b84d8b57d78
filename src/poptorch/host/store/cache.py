"""Where compiled code outlives its process: the executable cache of the options, and a folder beside Inductor's.

The *executable cache* (``Options.enableExecutableCaching``) has one file for each graph, with all code that was
compiled for it. The *code folder* lies in the directory in which Inductor keeps what it compiled, and serves
programs whose options name no cache. A file that is damaged, made by another release, or not signed by this user's key
is replaced with a warning: whatever is wrong with a cache, the program goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from poptorch._logging import logger
from poptorch._version import __version__
from poptorch.compiler.device_program import DeviceProgram
from poptorch.errors import Error, backend_error
from poptorch.executable import file as container
from poptorch.executable.file import File
from poptorch.executable.identity import identity
from poptorch.host.store import signing, turn
from poptorch.host.store.code_store import CodeStore, Store, StoredCode, surroundings
from poptorch.program.fingerprint import digest

EXTENSION = ".poptorch"


_CODE, _BLOB, _SIGNATURE = "code/", "blob/", "signature/"


def sections_of(store: CodeStore) -> dict[str, bytes | str]:
    """The sections of a file that holds this code."""
    return _sections(store.known)


def _sections(entries: Mapping[str, StoredCode]) -> dict[str, bytes | str]:
    sections: dict[str, bytes | str] = {}
    for key, stored in entries.items():
        sections[_CODE + key] = stored.text
        sections[_SIGNATURE + key] = signing.signature(key, stored.text, stored.blobs)
        sections |= {_BLOB + name: data for name, data in stored.blobs.items()}
    return sections


class FileStore:
    """The code in one file, for reading."""

    def __init__(self, file: File) -> None:
        self._file = file

    def find(self, key: str) -> StoredCode | None:
        section = _CODE + key
        if section not in self._file:
            return None
        text = self._file.text(section)
        with self._file.reading(section):
            content = json.loads(text)
            blobs = {name: self._file.bytes(_BLOB + name) for name in ([] if content is None else content["blobs"])}
        given = self._file.text(_SIGNATURE + key) if _SIGNATURE + key in self._file else ""
        if not signing.is_signed(given, key, text, blobs):
            raise backend_error(
                f"The native code in {self._file.path} was not signed by your own key: another user, machine or "
                "program made it"
            )
        return StoredCode(text, blobs)

    def known(self) -> list[str]:
        """What there is code for."""
        return [name.removeprefix(_CODE) for name in self._file.names() if name.startswith(_CODE)]

    def holds(self, key: str, stored: StoredCode) -> bool:
        """Whether the entry is there, sound, and the same."""
        try:
            return self.find(key) == stored
        except Error:
            return False

    def keep(self, key: str, stored: StoredCode) -> None:
        """Exported files stay as they are."""

    def finish(self) -> None:
        """Likewise."""

    def __str__(self) -> str:
        return self._file.path


def opened(path: Path) -> File | None:
    """A file of a cache; ``None`` if it is not there, ``poptorch.Error`` if others may have written it."""
    if not os.path.lexists(path):
        return None
    file = File(path)
    for place, status in ((path, file.status), (path.parent, os.stat(path.parent))):
        reason = signing.distrusted(status)
        if reason is not None:
            raise backend_error(f"{place} is not used: {reason}. Caches must be yours alone: chmod go-w, or remove it")
    return file


class Folder:
    """A directory with one file for each entry."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _file(self, key: str) -> Path:
        return self.path / key[:2] / f"{key}{EXTENSION}"

    def find(self, key: str) -> StoredCode | None:
        file = opened(self._file(key))
        if file is None:
            return None
        note_use(file.path)
        return FileStore(file).find(key)

    def keep(self, key: str, stored: StoredCode) -> None:
        path = self._file(key)
        try:
            file = opened(path)
        except Error:
            file = None
        if file is None or not FileStore(file).holds(key, stored):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            container.write(path, _sections({key: stored}), private=True)

    def finish(self) -> None:
        """Everything was written at once."""

    def __str__(self) -> str:
        return str(self.path)


def note_use(path: str) -> None:
    """Give a file the time of now: what was not used for long is removed first."""
    with contextlib.suppress(OSError):
        os.utime(path)


class CacheEntry:
    """The file of one graph in the executable cache."""

    def __init__(self, directory: str, device: DeviceProgram) -> None:
        parts = {name: value for name, value in identity(device).items() if name != "loop"}
        self.path = Path(directory) / f"{digest([parts, surroundings()])}{EXTENSION}"
        self._metadata = {"poptorch": __version__, "identity": parts, "cache": True}
        self._program = str(device.program)
        self._new: dict[str, StoredCode] = {}
        try:
            self._is_there = self._opened() is not None
        except Error as problem:
            self._is_there = False
            logger.warning("The cached executable is made anew: %s", problem.message)
        if self._is_there:
            note_use(str(self.path))
            logger.info("Executable found in the cache: %s", self.path)

    def _opened(self) -> FileStore | None:
        """What the file has now; each look at it is at one version of it."""
        file = opened(self.path)
        if file is None:
            return None
        if file.json("metadata") != self._metadata:
            raise file.damaged("its metadata are not those of the graph that its name stands for")
        return FileStore(file)

    def find(self, key: str) -> StoredCode | None:
        file = self._opened() if self._is_there else None
        return None if file is None else file.find(key)

    def keep(self, key: str, stored: StoredCode) -> None:
        try:
            file = self._opened()
        except Error:
            file = None
        if file is None or not file.holds(key, stored):
            self._new[key] = stored

    def finish(self) -> None:
        """Write what is new. Code that another process added meanwhile stays."""
        if self._is_there and not self._new:
            return
        entries = {**self._others(), **self._new}
        sections = {"metadata": self._metadata, "program": self._program, **_sections(entries)}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        container.write(self.path, sections, private=True)
        self._new.clear()
        self._is_there = True

    def _others(self) -> dict[str, StoredCode]:
        found: dict[str, StoredCode] = {}
        try:
            file = self._opened()
        except Error:
            return found
        for key in [] if file is None else file.known():
            with contextlib.suppress(Error):  # what is damaged is left out
                stored = file.find(key)  # type: ignore[union-attr]
                found |= {} if stored is None else {key: stored}
        return found

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


def prepare_directory(directory: str) -> bool:
    """Make the directory of a cache; a warning, and ``False``, if it cannot be used."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except (OSError, ValueError) as error:
        logger.warning("Nothing is cached: the directory %s cannot be made: %s", directory, error)
        return False
    reason = signing.distrusted(os.stat(directory))
    if reason is not None:
        logger.warning(
            "Nothing is cached: the directory %s is not used, because %s. What it contains is run as code: choose a "
            "directory of your own, or chmod go-w.",
            directory,
            reason,
        )
        return False
    if not is_writable(directory):
        logger.warning("Nothing new is cached: Cache folder %s is not writable", directory)
    return True


def is_writable(directory: str) -> bool:
    """Whether it exists, or can be made, and files can be made in it."""
    with contextlib.suppress(OSError, ValueError):
        os.makedirs(directory, mode=0o700, exist_ok=True)
    return os.path.isdir(directory) and os.access(directory, os.W_OK)


@contextlib.contextmanager
def one_at_a_time(directory: str, model: object, processes: int) -> Iterator[None]:
    """Let one of several processes compile a model, while the others wait to find it in the cache.

    Where there can be no lock, each process compiles. So does one that has waited for too long.
    """
    if not is_writable(directory):
        raise AssertionError(f"Cache folder {directory} is not writable")
    if not prepare_directory(directory):
        yield
        return
    name = hashlib.md5(repr(model).encode(), usedforsecurity=False).hexdigest()
    path = Path(directory) / f"{name}.lock"
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(turn.locked(path, processes))
        except turn.NotInTime as error:
            logger.warning("This process compiles the model itself: %s", error)
        except OSError as error:
            logger.warning(
                "Every one of %d processes compiles the model: %s cannot be locked: %s", processes, path, error
            )
        yield
