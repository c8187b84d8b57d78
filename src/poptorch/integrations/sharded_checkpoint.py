"""Checkpoints of jobs in which each process writes and reads its own part, and nobody needs room for the whole.

A job may go on with another number of processes: processes read what they need of whatever files have it.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from poptorch._version import __version__
from poptorch.distributed import process_group
from poptorch.distributed.process_group import ProcessGroup
from poptorch.errors import Error, RecoverableError, createPoptorchError
from poptorch.executor.executor import PoplarExecutor
from poptorch.executor.session import Session
from poptorch.executor.shards import MODEL, STATE, Piece, pieces_of
from poptorch.integrations import shard_files
from poptorch.options import Options
from poptorch_files import FileError, parse_json, read_text, replace

INDEX = "poptorch.json"
_KIND = "sharded checkpoint of poptorch, 1"
_DATA = re.compile(r"data-[0-9a-f]{16}")
_LONGEST_INDEX = 1 << 26


@dataclass(frozen=True)
class _Index:
    """What is where, and what is no tensor."""

    data: str
    files: dict[str, int]
    """Names and sizes in bytes."""

    random: list[int] | None = None
    groups: list[dict[str, Any]] = field(default_factory=list)
    """The settings of the optimizer's groups of parameters."""

    optimizer: str = ""
    """The name of its class."""

    extra: dict[str, Any] = field(default_factory=dict)
    processes: int = 1
    version: str = __version__
    kind: str = _KIND

    @staticmethod
    def read(folder: Path) -> _Index:
        """The index of a folder."""
        path = folder / INDEX
        try:
            found = parse_json(read_text(path, _LONGEST_INDEX, regular=True))
            if not isinstance(found, dict) or found.get("kind") != _KIND:
                raise ValueError("it is none, or one of another release")
            index = _Index(**found)
            types = (index.data, str), (index.files, dict), (index.groups, list), (index.extra, dict)
            words = index.random or []
            if not all(isinstance(value, kind) for value, kind in types) or not isinstance(words, list):
                raise ValueError("some entries have wrong types")
            if not _DATA.fullmatch(index.data) or not all(type(word) is int for word in words):
                raise ValueError("some entries have wrong values")
        except FileNotFoundError:
            raise FileNotFoundError(f"{folder} has no checkpoint of save_sharded: there is no {INDEX}") from None
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, FileError) else error
            raise createPoptorchError(f"{path} is no index of a checkpoint: {str(reason)[:200]}.") from None
        return index

    def check_files(self, folder: Path) -> None:
        """Refuse to read other files than those that were written."""
        found = _files_in(folder / self.data)
        wrong = [name for name in sorted({*found, *self.files}) if found.get(name) != self.files.get(name)]
        if wrong:
            raise createPoptorchError(
                f"The checkpoint in {folder} is damaged: {wrong[0]} is missing there, is not of it, or has another "
                "size than it was written with."
            )


def check_sharded(folder: str | Path) -> None:
    """An error unless the folder has a checkpoint of which no file is missing."""
    path = Path(folder).expanduser()
    _Index.read(path).check_files(path)


def save_sharded(folder: str | Path, executor: PoplarExecutor, extra: Mapping[str, Any] | None = None) -> None:
    """Write what training goes on from: weights, optimizer, random numbers, and plain values of your own.

    All processes of the job call this with the same folder, which all of them see; each writes its part, in files of
    safetensors. A checkpoint that is there already is replaced as a whole, when the new one is complete. The values of
    ``extra`` (numbers, texts, lists, dictionaries) are those of process 0. ``torch.distributed.checkpoint.load`` reads
    the weights, with ``HuggingFaceStorageReader(folder / "data-..." / "model")``.

    >>> import poptorch, tempfile
    >>> class WithLoss(torch.nn.Linear):
    ...     def forward(self, x):
    ...         return poptorch.identity_loss(super().forward(x), reduction="sum")
    >>> model = WithLoss(2, 1)
    >>> training = poptorch.trainingModel(model, optimizer=poptorch.optim.AdamW(model.parameters(), lr=0.1))
    >>> _ = training(torch.ones(1, 2))
    >>> folder = tempfile.mkdtemp()
    >>> save_sharded(folder, training, {"epoch": 3})
    >>> load_sharded(folder, training)
    {'epoch': 3}
    """
    path, job = Path(folder).expanduser(), Together.of(executor.options)
    try:
        text = json.dumps(dict(extra or {}))
        if json.loads(text) != (extra or {}):
            raise ValueError("numbers as keys become texts, and tuples become lists")
    except (TypeError, ValueError, RecursionError) as error:
        raise createPoptorchError(f"save_sharded: the values of 'extra' cannot be written as JSON: {error}.") from None
    executor.withSession(lambda session: _save(path, session, job, json.loads(text)))


def load_sharded(folder: str | Path, executor: PoplarExecutor) -> dict[str, Any]:
    """Go on from what :func:`save_sharded` has written; returns the ``extra`` values.

    All processes of the job call this, when the model is compiled: call ``executor.compile(...)`` with the first batch
    before. They may be more or fewer than those that wrote it. Nothing is changed unless the checkpoint fits.
    """
    path = Path(folder).expanduser()
    index = _Index.read(path)
    index.check_files(path)
    job = Together.of(executor.options)
    return executor.withSession(lambda session: _load(path, index, executor, session, job))


# -- in turn with other threads ---------------------------------------------------------------------------------------


def _save(path: Path, session: Session, job: Together, extra: dict[str, Any]) -> None:
    data = job.of_first(lambda: f"data-{secrets.token_hex(8)}", "choose a name")
    parts = path / data
    try:
        with torch.no_grad():
            own = list(job.own_share(pieces_of(session)))
            written = job.together(lambda: _write(parts, job.process, own), f"write to {parts}")
        files = {name: size for one in written for name, size in one.items()}
        link = session.wrapped.link
        groups = [] if link is None else [_plain(group) for group in link.optimizer.param_groups]
        optimizer = "" if link is None else type(link.optimizer).__name__
        index = _Index(data, files, session.rng_state, groups, optimizer, extra, job.processes)

        def finish() -> None:
            with contextlib.suppress(FileNotFoundError):
                index.check_files(path)
            replace(path / INDEX, json.dumps(asdict(index)).encode())

        job.of_first(finish, f"finish {path}: do all processes see the same folder")
    except BaseException:
        if job.process == 0 or not job.group:
            shutil.rmtree(parts, ignore_errors=True)
        raise
    if job.process == 0:
        for other in path.iterdir():
            if _DATA.fullmatch(other.name) and other.name != data and not other.is_symlink():
                shutil.rmtree(other, ignore_errors=True)


def _write(parts: Path, process: int, pieces: Sequence[Piece]) -> dict[str, int]:
    """The names and sizes of the files that this process has written."""
    for kind in (MODEL, STATE):
        (parts / kind).mkdir(parents=True, exist_ok=True)
        shard_files.write(parts / kind, process, [piece for piece in pieces if piece.kind == kind])
    return {name: size for name, size in _files_in(parts).items() if f"shard-{process + 1:05d}-" in name}


def _load(path: Path, index: _Index, executor: PoplarExecutor, session: Session, job: Together) -> dict[str, Any]:
    link = session.wrapped.link
    if link is None or not session.is_attached:
        raise createPoptorchError(
            "load_sharded() needs a training model that is loaded on its device: call executor.compile(...) first, and "
            "attachToDevice() if it was detached. For inference, read the weights with torch.distributed.checkpoint."
        )

    def read() -> None:
        with torch.no_grad(), _named(path):
            pieces = pieces_of(session)
            for kind in (STATE, MODEL):
                shard_files.read(path / index.data / kind, [piece for piece in pieces if piece.kind == kind])

    job.together(lambda: _take_settings(path, index, executor, link.optimizer), f"use {path}")
    try:
        job.together(read, f"read {path}")
    finally:
        session.engine.memory.changed()
        session.wrapped.weights.trains()
        link.took_state()
    if index.random is not None:
        session.rng_state = index.random
    return index.extra


def _take_settings(path: Path, index: _Index, executor: PoplarExecutor, optimizer: torch.optim.Optimizer) -> None:
    """Learning rates and the like; an error, and nothing else, if the program was compiled with other constants."""
    kind = type(optimizer).__name__
    if index.optimizer and index.optimizer != kind:
        raise createPoptorchError(f"The checkpoint in {path} was written with {index.optimizer}, not with {kind}.")
    before = [dict(group) for group in optimizer.param_groups]
    _restore(optimizer, index.groups)
    try:
        executor.setOptimizer(optimizer)
    except Exception:
        _restore(optimizer, before)
        raise


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group that are numbers, texts, or a few of them."""
    kinds = bool, int, float, str, type(None)
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in group.items()
        if isinstance(value, kinds) or (isinstance(value, tuple) and all(isinstance(v, kinds) for v in value))
    }


def _restore(optimizer: torch.optim.Optimizer, groups: Sequence[Any]) -> None:
    for group, saved in zip(optimizer.param_groups, groups, strict=False):
        for name, value in saved.items() if isinstance(saved, dict) else ():
            if name in group and name != "params":
                group[name] = tuple(value) if isinstance(group[name], tuple) else value


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of the libraries that read files say which checkpoint it is."""
    try:
        yield
    except (Error, Exception) as error:
        message = getattr(error, "message", None) or str(error) or type(error).__name__
        raise createPoptorchError(f"The checkpoint in {path} cannot be used: {message[-500:]}.") from error


def _files_in(folder: Path) -> dict[str, int]:
    return {
        f"{kind}/{path.name}": path.stat().st_size if path.is_file() and not path.is_symlink() else -1
        for kind in (MODEL, STATE)
        if (folder / kind).is_dir()
        for path in (folder / kind).iterdir()
    }


# -- the other processes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Together:
    """The processes of a job, as they write or read one checkpoint."""

    process: int
    processes: int
    blocks: int
    """How many processes share each replica."""

    group: ProcessGroup | None

    @staticmethod
    def of(options: Options) -> Together:
        """Those of the options; they meet, if they have not met yet."""
        process, processes = options.Distributed.processId, options.Distributed.numProcesses
        group = process_group.ensure_initialized(process, processes) if processes > 1 else None
        return Together(process, processes, options.Distributed.ipuBlocks, group)

    def together(self, work: Callable[[], Any], what: str) -> list[Any]:
        """What the work gives in all processes; an error in all of them if it fails in one."""
        problem, result, cause = "", None, None
        try:
            result = work()
        except RecoverableError:
            raise
        except Exception as error:
            if self.group is None and isinstance(error, Error):
                raise
            problem, cause = getattr(error, "message", "") or f"{type(error).__name__}: {error}", error
        found = [[problem, result]] if self.group is None else self.group.gather_values([problem, result])
        for process, (text, _) in enumerate(found):
            if text:
                raise createPoptorchError(f"Process {process} cannot {what}: {text}") from cause
        return [value for _, value in found]

    def of_first(self, work: Callable[[], Any], what: str) -> Any:
        """What the work gives in process 0, which alone does it."""
        return self.together(lambda: work() if self.process == 0 else None, what)[0]

    def own_share(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """What this process writes: divided tensors as they are, and of each other one somebody writes all.

        Processes that train the same stages with other data have the same tensors, and take turns in writing them.
        """
        row, own_block = divmod(self.process, self.blocks)
        rows = self.processes // self.blocks
        writers = self._blocks_that_write(pieces)
        load = [0] * rows
        for piece in sorted(pieces, key=lambda piece: piece.name):
            if piece.divided:
                if piece.values.numel():
                    yield piece
                continue
            if writers.get(f"{piece.kind}/{piece.name}", own_block) != own_block:
                continue
            writer = 0 if piece.differs else load.index(min(load))
            load[writer] += piece.values.nbytes
            if writer == row:
                yield piece

    def _blocks_that_write(self, pieces: Sequence[Piece]) -> dict[str, int]:
        """The first block that has a tensor on its device, or on its host if none has it there."""
        if self.group is None or self.blocks == 1:
            return {}
        names = [[f"{p.kind}/{p.name}" for p in pieces if p.on_device is there] for there in (True, False)]
        found = self.group.gather_values(names if self.process < self.blocks else [[], []])
        writers: dict[str, int] = {}
        for place in range(2):
            for block in range(self.blocks):
                for name in found[block][place]:
                    writers.setdefault(name, block)
        return writers
