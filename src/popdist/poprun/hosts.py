"""The hosts of a job."""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
import socket
from pathlib import Path

from popdist.poprun.errors import PoprunError, UsageError
from popdist.poprun.settings import Settings
from poptorch_files import read_text

MOST_HOSTS = 10_000
"""Of one job. A range with more is a slip of the pen."""

_LONGEST_FILE = 4 << 20
_LONGEST_NUMBER = 9
_LONGEST_NAME = 255
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
        raise UsageError(f"--host is {_shortened(text)}: there is a host without a name.")
    found: list[str] = []
    for entry in entries:
        found += _expand_one(entry, MOST_HOSTS - len(found))
    return tuple(found)


def _expand_one(entry: str, most: int) -> list[str]:
    pieces = _PART.split(entry)  # text, inside of brackets, text, ...
    if any(bracket in piece for piece in pieces for bracket in "[]"):
        raise UsageError(f"--host: {_shortened(entry)} has a bracket without its partner.")
    choices = [_numbers(piece, entry) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    if math.prod(map(len, choices)) > most:
        raise _too_many(entry)
    if sum(max(map(len, choice), default=0) for choice in choices) > _LONGEST_NAME:
        raise UsageError(f"--host: {_shortened(entry)} is longer than any name of a host, {_LONGEST_NAME} letters.")
    return ["".join(parts) for parts in itertools.product(*choices)]


def _too_many(entry: str) -> UsageError:
    return UsageError(f"--host: {_shortened(entry)} stands for too many hosts: a job has at most {MOST_HOSTS}.")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:40]}...{text[-10:]}")


def _numbers(inside: str, entry: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        last = last if dash else first
        if not (_is_number(first) and _is_number(last) and int(first) <= int(last)):
            raise UsageError(
                f"--host: {_shortened(entry)} has a range that cannot be read: {_shortened(part)}. Write host[0-2,4]."
            )
        if int(last) - int(first) >= MOST_HOSTS - len(found):
            raise _too_many(entry)
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _is_number(text: str) -> bool:
    """Digits of this alphabet, and not too many: other alphabets have digits, too, and names of hosts do not."""
    return text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER


def _from_file(file: Path) -> tuple[str, ...]:
    try:
        lines = read_text(file, _LONGEST_FILE).splitlines()
    except OSError as error:
        raise PoprunError(f"--hostfile: {file} cannot be read: {error.strerror}.") from None
    names = [line.partition("#")[0].split() for line in lines]
    hosts = tuple(words[0] for words in names if words)
    if not hosts:
        raise PoprunError(f"--hostfile: {file} names no host.")
    if len(hosts) > MOST_HOSTS:
        raise PoprunError(f"--hostfile: {file} names {len(hosts)} hosts, and a job has at most {MOST_HOSTS}.")
    for number, words in enumerate(names, 1):
        if words and (len(words[0]) > _LONGEST_NAME or not words[0].isprintable()):
            raise PoprunError(f"--hostfile: line {number} of {file} is no name of a host: {words[0][:40]!r}.")
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
