"""Which part of the machine's IPUs this process may use: a partition, or a part (GCD) of one.

The first of these that applies counts:

- ``IPUOF_CONFIG_PATH`` names a connection file;
- ``IPUOF_VIPU_API_PARTITION_ID`` names a partition of this host, and ``IPUOF_VIPU_API_GCD_ID`` a part of it;
- ``~/.ipuof.conf.d`` has the connection files of exactly one partition: creating it wrote them. If that folder has
  none, ``/etc/ipuof.conf.d`` counts, where they are for all users of the machine.

Where a partition has several parts and nothing says which, process *i* of a job uses part *i*.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from poptorch import environment, launchers
from poptorch._logging import warn_once
from poptorch.errors import Error, createPoptorchError
from poptorch_files import parse_json, read_text, state_folder

FOR_ALL_USERS = Path("/etc/ipuof.conf.d")
"""Where connection files of the whole machine are."""


_LONGEST_NAME = 100


@dataclass(frozen=True)
class PartitionPart:
    """What a process may use."""

    partition: str
    gcd: int
    ipus: int
    is_whole: bool
    """Whether it is all of the partition."""

    @property
    def name(self) -> str:
        """A name that only processes with the same part have. It becomes a part of the name of a file."""
        name = re.sub(r"[^\w.-]", "_", self.partition)[:_LONGEST_NAME]
        return name if self.is_whole else f"{name}.{self.gcd}"


def visible() -> PartitionPart | None:
    """The part of the machine's IPUs that this process may use; ``None`` for all."""
    path = environment.IPUOF_CONFIG_PATH.read()
    if path is not None:
        return _part(_connection(Path(path)), Path(path).stem)
    name = environment.IPUOF_PARTITION.read()
    if name is not None:
        return _registered(name)
    found = list(_found().values())
    names = _names(found)
    if len(names) > 1:
        warn_once(
            ("partitions", *sorted(names)),
            f"There are several partitions: {', '.join(sorted(names))}. Programs use all IPUs of the machine unless "
            f"{environment.IPUOF_PARTITION.name} names one of them.",
        )
    return _chosen(found, names.pop()) if len(names) == 1 else None


def file_of(process_id: int) -> Path | None:
    """The connection file of a process that no launcher has numbered, if the only partition has several parts."""
    if environment.IPUOF_CONFIG_PATH.read() is not None or environment.IPUOF_PARTITION.read() is not None:
        return None
    found = _found()
    if len(found) < 2 or len(_names(found.values())) > 1:
        return None
    return next((path for path, connection in found.items() if _gcd(connection) == process_id), None)


def _found() -> dict[Path, dict[str, Any]]:
    """The connection files of the user, or else of all users."""
    folders = (Path.home() / ".ipuof.conf.d", FOR_ALL_USERS)
    files = next(filter(None, (sorted(folder.glob("*.conf")) for folder in folders)), [])
    return {path: _connection(path) for path in files}


def _names(connections: Iterable[dict[str, Any]]) -> set[str]:
    return {str(connection["attributes"].get("Partition")) for connection in connections}


def _registered(name: str) -> PartitionPart | None:
    path = registry_folder() / f"{name}.json"
    try:
        connections = _described_in(path, lambda content: [_checked(each) for each in content["gcds"]])
    except FileNotFoundError:
        warn_once(
            ("partition", name),
            f"{environment.IPUOF_PARTITION.name} is {name!r}, but there is no such partition on this host (vipu list "
            "partitions shows all). Programs use all IPUs of the machine.",
        )
        return None
    return _chosen(connections, name)


def _chosen(connections: Sequence[dict[str, Any]], name: str) -> PartitionPart:
    """The part of this process among all parts of a partition."""
    if len(connections) == 1:
        return _part(connections[0], name)
    wanted = environment.IPUOF_GCD.read()
    gcd = launchers.layout().process_id if wanted is None else wanted
    for connection in connections:
        if _gcd(connection) == gcd:
            return _part(connection, name)
    raise createPoptorchError(
        f"No IPUoF configuration file found for processId {gcd}: the partition {name!r} has {len(connections)} parts, "
        "one for each process. Start as many processes, or make another partition."
    )


def _part(connection: dict[str, Any], name: str) -> PartitionPart:
    attributes = connection["attributes"]
    is_whole = int(attributes.get("Number of GCDs") or 1) == 1
    return PartitionPart(
        str(attributes.get("Partition") or name), _gcd(connection), len(connection["devices"]), is_whole
    )


def _gcd(connection: dict[str, Any]) -> int:
    return int(connection["attributes"].get("GCD Id") or 0)


def _connection(path: Path) -> dict[str, Any]:
    """A connection file: the IPUs (``devices``), and what is known about them (``attributes``)."""
    try:
        return _described_in(path, _checked)
    except FileNotFoundError as error:
        raise _unusable(path, error.strerror) from None


_Found = TypeVar("_Found")


def _described_in(path: Path, read: Callable[[Any], _Found]) -> _Found:
    """What a file describes; our error with its name for a file that describes something else."""
    try:
        return read(parse_json(read_text(path, regular=True)))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unusable(path, error.strerror) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(path, f"{type(error).__name__}: {error}") from None


def _unusable(path: Path, problem: object) -> Error:
    return createPoptorchError(
        f"The connection file {path} cannot be used: {str(problem)[:200]}. Unset {environment.IPUOF_CONFIG_PATH.name} "
        f"and {environment.IPUOF_PARTITION.name}, or make the partition again."
    )


def _checked(content: Any) -> dict[str, Any]:
    """One part of a partition, with numbers where numbers are expected."""
    attributes = dict(content.get("attributes") or {})
    found = {"devices": list(content["devices"]), "attributes": attributes}
    parts = int(attributes.get("Number of GCDs") or 1)
    ipus = len(found["devices"])
    if not 0 <= _gcd(found) < parts or ipus < 1 or ipus & (ipus - 1):
        raise ValueError(f"it is part {_gcd(found)} of {parts}, with {ipus} IPUs")
    return found


def registry_folder() -> Path:
    """Where the partitions of this host are described, one file for each."""
    chosen = environment.VIPU_DIR.read()
    return Path(chosen) if chosen else state_folder() / "vipu"
