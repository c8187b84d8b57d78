"""``poptorch cache``: what the caches hold, whether it is sound, and how to have less of it."""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

from poptorch import environment
from poptorch.figures import byte_size
from poptorch.host.store import inventory
from poptorch.host.store.cache import local_folder

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_to(commands: Any) -> None:
    """Add the command and what it can do."""
    parser = commands.add_parser("cache", help="list, measure, verify or prune caches of compiled code")
    parser.add_argument(
        "--directory",
        type=Path,
        action="append",
        help="a cache; by default that of POPTORCH_CACHE_DIR and the folder beside Inductor's cache",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="one line for each file, the least recently used first")
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(run=_list)
    actions.add_parser("size", help="files and bytes of each cache").set_defaults(run=_size)
    verify = actions.add_parser("verify", help="check hashes, signatures and owners; status 1 if something is wrong")
    verify.set_defaults(run=_verify)
    prune = actions.add_parser("prune", help="remove files; those that programs are using stay readable for them")
    prune.add_argument("--older-than", type=age, metavar="AGE", help="not used for that long: 12h, 30d, 8w")
    prune.add_argument("--max-size", type=size, metavar="SIZE", help="least recently used first, until 2G are left")
    prune.add_argument("--dry-run", action="store_true", help="say what would be removed")
    prune.set_defaults(run=lambda chosen: _prune(chosen, prune))


def age(text: str) -> int:
    """Seconds.

    >>> age("2h")
    7200
    """
    return _measured(text, _SECONDS, "a number with s, m, h, d or w, such as 30d")


def size(text: str) -> int:
    """Bytes.

    >>> size("2K")
    2048
    """
    return _measured(text, _BYTES, "a number of bytes, or one with K, M, G or T, such as 2G")


def _measured(text: str, units: dict[str, int], wanted: str) -> int:
    found = re.fullmatch(r"(\d+)(\D?)", text)
    if found is None or found[2] not in units:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return int(found[1]) * units[found[2]]


def _directories(chosen: argparse.Namespace) -> list[Path]:
    if chosen.directory:
        return list(chosen.directory)
    configured, folder = environment.CACHE_DIR.read(), local_folder()
    found = [] if configured is None else [Path(configured)]
    return found if folder is None else [*found, folder.path]


def _entries(chosen: argparse.Namespace) -> list[inventory.CacheFile]:
    found = [entry for directory in _directories(chosen) for entry in inventory.entries(directory)]
    return sorted(found, key=lambda entry: (entry.used, entry.path))


def _list(chosen: argparse.Namespace) -> int:
    found = _entries(chosen)
    if chosen.json:
        print(json.dumps([{"path": str(e.path), "size": e.size, "used": e.used} for e in found], indent=1))
        return 0
    for entry in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        print(f"{byte_size(entry.size):>10}  {used}  {entry.path}")
    return 0


def _size(chosen: argparse.Namespace) -> int:
    for directory in _directories(chosen):
        found = inventory.entries(directory)
        print(f"{directory}: {len(found)} files, {byte_size(sum(entry.size for entry in found))}")
    return 0


def _verify(chosen: argparse.Namespace) -> int:
    found = _entries(chosen)
    problems = {entry.path: problem for entry in found if (problem := inventory.problem_of(entry.path)) is not None}
    for path, problem in problems.items():
        print(f"{path}: {problem}")
    print(f"{len(found) - len(problems)} of {len(found)} files are sound")
    return 1 if problems else 0


def _prune(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if chosen.older_than is None and chosen.max_size is None:
        parser.error("say what to remove: --older-than, --max-size, or both")
    found = _entries(chosen)
    oldest = None if chosen.older_than is None else time.time() - chosen.older_than
    removed = inventory.to_remove(found, oldest, chosen.max_size)
    for entry in removed:
        print(f"{byte_size(entry.size):>10}  {entry.path}")
        if not chosen.dry_run:
            entry.path.unlink(missing_ok=True)
    if not chosen.dry_run:
        for directory in _directories(chosen):
            inventory.remove_unfinished(directory)
    freed = sum(entry.size for entry in removed)
    left = sum(entry.size for entry in found) - freed
    removal, rest = ("would be removed", "would stay") if chosen.dry_run else ("removed", "left")
    print(f"{len(removed)} files with {byte_size(freed)} {removal}; {byte_size(left)} {rest}")
    return 0
