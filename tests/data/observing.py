"""What a process leaves behind: other processes, descriptors, shared memory."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from open_files import open_files


class Leftovers(NamedTuple):
    """Everything that a loader could leak."""

    processes: frozenset[int]
    descriptors: int
    segments: frozenset[str]
    mappings: int


def parent_of(pid: int) -> int | None:
    """The parent of a living process; ``None`` for zombies and for those that are gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return None if state in "ZX" else int(parent)


def descendants(root: int) -> frozenset[int]:
    """All living processes below ``root``."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    todo = [root]
    while todo:
        todo += (below := children.get(todo.pop(), []))
        found.update(below)
    return frozenset(found)


def leftovers() -> Leftovers:
    """The state of this process right now."""
    maps = Path("/proc/self/maps").read_text()
    shared = frozenset(os.listdir("/dev/shm"))
    return Leftovers(descendants(os.getpid()), len(os.listdir("/proc/self/fd")), shared, maps.count("memfd:poptorch"))


def wait_for_nothing_more(before: Leftovers) -> None:
    """Fail if anything stays that was not there ``before``.

    A moment is allowed: processes end and the threads that feed PyTorch's queues close their pipes in their own time.
    """
    wait_until(lambda: leftovers().processes <= before.processes, "no process is left behind")
    wait_until(
        lambda: leftovers().descriptors <= before.descriptors,
        f"no more than {before.descriptors} descriptors are open",
        shown=lambda: "\n".join(sorted(open_files())),
    )
    after = leftovers()
    assert after.segments <= before.segments
    assert after.mappings <= before.mappings


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 20.0, shown: Callable[[], str] = str) -> None:
    """Poll ``condition``; failing to come true in time is a failure of the test, with what ``shown`` says then."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}\n{shown()}"
        time.sleep(0.01)


def joined(batches: Iterable[Iterable[int]]) -> list[int]:
    """The numbers of all batches in one list."""
    return list(itertools.chain.from_iterable(batches))
