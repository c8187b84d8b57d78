"""The hosts of a job."""

from __future__ import annotations

import ipaddress
import itertools
import re
import socket
from pathlib import Path

from popdist.poprun.errors import PoprunError, UsageError
from popdist.poprun.settings import Settings

_PART = re.compile(r"\[([^\[\]]*)\]")


def of(settings: Settings) -> tuple[str, ...]:
    """The hosts that were given; none means this one."""
    if settings.hostfile is not None:
        return _from_file(Path(settings.hostfile))
    return () if settings.host is None else expand(settings.host)


def expand(text: str) -> tuple[str, ...]:
    """A list of hosts with ranges, one by one.

    >>> expand("a,node[08-10,12],10.0.0.1")
    ('a', 'node08', 'node09', 'node10', 'node12', '10.0.0.1')
    """
    entries = [entry.strip() for entry in re.split(r",(?![^\[]*\])", text)]
    if not all(entries):
        raise UsageError(f"--host is {text!r}: there is a host without a name.")
    return tuple(host for entry in entries for host in _expand_one(entry))


def _expand_one(entry: str) -> list[str]:
    pieces = _PART.split(entry)  # text, inside of brackets, text, ...
    if any(bracket in piece for piece in pieces for bracket in "[]"):
        raise UsageError(f"--host: {entry!r} has a bracket without its partner.")
    choices = [_numbers(piece, entry) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    return ["".join(parts) for parts in itertools.product(*choices)]


def _numbers(inside: str, entry: str) -> list[str]:
    found = []
    for part in inside.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        last = last if dash else first
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
            raise UsageError(f"--host: {entry!r} has a range that cannot be read: {part!r}. Write host[0-2,4].")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _from_file(file: Path) -> tuple[str, ...]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PoprunError(f"--hostfile: {file} cannot be read: {error.strerror}.") from None
    names = [line.partition("#")[0].split() for line in lines]
    hosts = tuple(words[0] for words in names if words)
    if not hosts:
        raise PoprunError(f"--hostfile: {file} names no host.")
    return hosts


def is_this_one(host: str) -> bool:
    """Whether a host is the one that PopRun runs on.

    >>> is_this_one("localhost"), is_this_one("127.0.0.1")
    (True, True)
    """
    if host in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
