"""Which partitions exist on this host.

Each partition is a file of JSON in one folder: its specification, its state, and for each of its parts (GCDs) what a
program has to know to connect: the same text as in the connection files. Changes happen under a lock, and files are
replaced as a whole, so a reader never sees half of one.

``POPTORCH_VIPU_DIR`` names the folder; without it, it is ``vipu`` in the folder of
``poptorch_files.state_folder``. ``poptorch.devices`` reads
the files, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from poptorch_files import parse_json, read_text, state_folder
from poptorch_files import replace as replace_file

FOLDER = "POPTORCH_VIPU_DIR"
CLUSTER = "localhost"
"""The name of the one pool of IPUs, which clusters and allocations both were."""

ROUTINGS = {"dnc": "DNC", "swnc": "SWNC", "btnc": "BTNC", "ringswnc": "RINGSWNC", "ring-swnc": "RINGSWNC"}
SYNC_TYPES = {
    "c2-compatible": "ST_GS2_DEFAULT",
    "pod-native-default": "ST_POD_NATIVE_DEFAULT",
    "pod-native-replicated-pipeline": "ST_POD_NATIVE_REPLICATED_PIPELINE",
}
_DEFAULT_SYNC = "ST_POD_NATIVE_DEFAULT"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")


class RegistryError(Exception):
    """What was asked for is not possible; the text says why."""


@dataclass(frozen=True)
class Spec:
    """What a partition is made of."""

    size: int
    num_gcds: int = 1
    num_replicas: int | None = None
    """Over all parts; by default one for each."""

    reconfigurable: bool = False
    routing: str = "DNC"
    sync_type: str | None = None
    link_domains: int = 1
    index: int | None = None
    """Which of the blocks of this size; by default the first that is free."""

    def checked(self) -> Spec:
        """The same with all defaults filled in.

        >>> Spec(4, num_gcds=2).checked().num_replicas
        2
        >>> Spec(6).checked()
        Traceback (most recent call last):
        ...
        popdist.vipu.registry.RegistryError: the size of a partition is a power of two, not 6
        """
        if self.size < 1 or self.size & (self.size - 1):
            raise RegistryError(f"the size of a partition is a power of two, not {self.size}")
        replicas = self.num_gcds if self.num_replicas is None else self.num_replicas
        for what, whole, parts in (
            ("IPUs between GCDs", self.size, self.num_gcds),
            ("IPUs between replicas", self.size, replicas),
            ("replicas between GCDs", replicas, self.num_gcds),
        ):
            if parts < 1 or whole % parts:
                raise RegistryError(f"cannot divide {what} evenly: {whole} by {parts}")
        if not 1 <= self.link_domains <= self.size:
            raise RegistryError(f"{self.size} IPUs cannot lie in {self.link_domains} link domains")
        if self.reconfigurable and self.num_gcds != 1:
            raise RegistryError("a reconfigurable partition has one GCD")
        return replace(self, num_replicas=replicas, sync_type=self._sync_type())

    def _sync_type(self) -> str:
        if not self.reconfigurable:
            return self.sync_type or _DEFAULT_SYNC
        compatible = SYNC_TYPES["c2-compatible"]
        if self.sync_type not in (None, compatible) and self.index is None:
            raise RegistryError("a reconfigurable partition has the sync type c2-compatible, unless --index is given")
        return self.sync_type or compatible


@dataclass(frozen=True)
class Partition:
    """A partition that exists: ``spec.size`` IPUs of this host, from number ``first`` on."""

    name: str
    spec: Spec
    first: int
    state: str = "ACTIVE"
    resets: int = 0

    def ipus(self, gcd: int | None = None) -> range:
        """The IPUs of the partition, or of one of its parts."""
        if gcd is None:
            return range(self.first, self.first + self.spec.size)
        each = self.spec.size // self.spec.num_gcds
        return range(self.first + gcd * each, self.first + (gcd + 1) * each)

    def connection(self, gcd: int) -> dict[str, Any]:
        """What a program has to know to use one of the parts: the content of a connection file."""
        replicas = (self.spec.num_replicas or 1) // self.spec.num_gcds
        devices = [
            {
                "address": "127.0.0.1",
                "device id": ipu,
                "segment": 0,
                "routing id": place,
                "architecture": "virtual",
            }
            for place, ipu in enumerate(self.ipus(gcd))
        ]
        attributes = {
            "GCD Id": str(gcd),
            "Number of GCDs": str(self.spec.num_gcds),
            "Number of replicas": str(replicas),
            "Partition": self.name,
            "Reconfigurable": "1" if self.spec.reconfigurable else "0",
            "Routing": self.spec.routing,
            "Sync type": str(self.spec.sync_type),
        }
        return {"devices": devices, "attributes": attributes}


class Registry:
    """The partitions of this host."""

    def __init__(self, folder: Path | None = None, connections: Path | None = None) -> None:
        self._folder = folder or default_folder()
        self._connections = connections or Path.home() / ".ipuof.conf.d"

    def partitions(self) -> dict[str, Partition]:
        """All partitions by name, in the order of their names. Files that describe none are left out."""
        return self.look()[0]

    def look(self) -> tuple[dict[str, Partition], dict[str, RegistryError]]:
        """All partitions by name, and what is wrong with the files that describe none."""
        found: dict[str, Partition] = {}
        problems: dict[str, RegistryError] = {}
        for path in sorted(self._folder.glob("*.json")):
            try:
                found[path.stem] = read_partition(path)
            except FileNotFoundError:  # removed while we were looking
                continue
            except RegistryError as problem:
                problems[path.stem] = problem
        return found, problems

    def get(self, name: str) -> Partition:
        """The partition with this name."""
        known, problems = self.look()
        if name in problems:
            raise problems[name]
        if name not in known:
            raise RegistryError(f"there is no partition {name!r}; there are: {', '.join(known) or 'none'}")
        return known[name]

    def create(self, name: str, spec: Spec, available: int, *, connect: bool = True) -> Partition:
        """Make a partition out of a host's ``available`` IPUs that no other partition has.

        Without ``connect`` there are no connection files: only programs that are told its name use it.
        """
        spec = spec.checked()
        if not _NAME.fullmatch(name):
            raise RegistryError(
                f"{name[:100]!r} is no name for a partition: use up to 100 letters, digits, '_', '-' and '.'"
            )
        with self._locked():
            others, problems = self.look()
            if problems:  # which IPUs do they have?
                raise next(iter(problems.values()))
            if name in others:
                raise RegistryError(f"the partition {name!r} exists already")
            made = Partition(name, spec, _free_block(spec, others, available))
            self._write(made)
            if connect:
                self._connect(made)
        return made

    def has_connection_files(self, partition: Partition) -> bool:
        """Whether programs find the partition without being told its name."""
        return self._connection_file(partition, 0).exists()

    def reset(self, name: str) -> Partition:
        """Bring a partition back to its initial state."""
        with self._locked():
            before = self.get(name)
            after = replace(before, state="ACTIVE", resets=before.resets + 1)
            self._write(after)
        return after

    def remove(self, name: str) -> None:
        """Remove a partition with its connection files; also one whose file describes none."""
        with self._locked():
            known, problems = self.look()
            if name in problems:
                (self._folder / f"{name}.json").unlink()
                return
            gone = known[name] if name in known else self.get(name)
            (self._folder / f"{name}.json").unlink()
            for gcd in range(gone.spec.num_gcds):
                self._connection_file(gone, gcd).unlink(missing_ok=True)

    def _connect(self, partition: Partition) -> None:
        self._connections.mkdir(parents=True, exist_ok=True)
        for gcd in range(partition.spec.num_gcds):
            _replace(self._connection_file(partition, gcd), partition.connection(gcd))

    def _connection_file(self, partition: Partition, gcd: int) -> Path:
        part = "" if partition.spec.num_gcds == 1 else f"_gcd{gcd}"
        return self._connections / f"{partition.name}{part}_ipuof.conf"

    def _write(self, partition: Partition) -> None:
        gcds = [partition.connection(gcd) for gcd in range(partition.spec.num_gcds)]
        _replace(self._folder / f"{partition.name}.json", {**asdict(partition), "gcds": gcds})

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self._folder / "lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def default_folder() -> Path:
    """The folder of this host's partitions."""
    given = os.environ.get(FOLDER)
    return Path(given) if given else state_folder() / "vipu"


def _free_block(spec: Spec, others: Mapping[str, Partition], available: int) -> int:
    """The number of the first IPU of a free block. Blocks of one size lie side by side, so they never overlap."""
    if spec.size > available:
        raise RegistryError(f"a partition of {spec.size} IPUs is larger than this host, which has {available}")
    taken = {ipu for partition in others.values() for ipu in partition.ipus()}
    starts = range(0, available - spec.size + 1, spec.size)
    if spec.index is not None:
        if spec.index not in range(len(starts)):
            raise RegistryError(f"there is no block {spec.index} of {spec.size} IPUs among {available}")
        starts = starts[spec.index : spec.index + 1]
    for first in starts:
        if taken.isdisjoint(range(first, first + spec.size)):
            return first
    raise RegistryError(
        f"no {spec.size} IPUs are free side by side: {len(taken)} of {available} belong to the partitions "
        f"{', '.join(others)}"
    )


def read_partition(path: Path) -> Partition:
    """The partition that a file of the registry describes; ``RegistryError`` names a file that describes none."""
    try:
        stored = parse_json(read_text(path, _MOST_BYTES, regular=True))
        spec, named = stored["spec"], {key: stored[key] for key in ("name", "first", "state", "resets")}
        partition = Partition(**named, spec=Spec(**spec))
        _check(partition, path.stem)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RegistryError) as error:
        what = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise RegistryError(
            f"the file {path} describes no partition ({str(what)[:200]}); remove it with: vipu remove partition "
            f"{path.stem}"
        ) from None
    return partition


_MOST_BYTES = 1 << 20
_MOST_IPUS = 1 << 16


def _check(partition: Partition, name: str) -> None:
    """Refuse what :meth:`Registry.create` would not have written."""
    spec = partition.spec
    for what, value in (("size", spec.size), ("num_gcds", spec.num_gcds), ("first", partition.first)):
        if type(value) is not int or not 0 <= value <= _MOST_IPUS:
            raise ValueError(f"its {what} is {value!r}")
    numbers = (spec.link_domains, partition.resets, spec.num_replicas or 1, spec.index or 0)
    texts = (partition.state, spec.routing, spec.sync_type or "")
    if not all(type(number) is int for number in numbers) or not all(type(text) is str for text in texts):
        raise TypeError("a value of another type")
    if type(spec.reconfigurable) is not bool:
        raise TypeError(f"reconfigurable is {spec.reconfigurable!r}")
    if partition.name != name or not _NAME.fullmatch(name):
        raise ValueError(f"its name is {partition.name!r}")
    spec.checked()


def _replace(file: Path, content: Mapping[str, Any]) -> None:
    """Write a file so that a reader sees all of it or what was there before."""
    replace_file(file, (json.dumps(content, indent=2) + "\n").encode(), 0o600)
