"""Becomes one instance of a job: the last thing that happens before the user's program starts.

PopRun starts this file as a program of its own: ``python -I -S instance.py PARENT SIGNAL NODE CLOSED -- program ...``.
It imports nothing but a little of the standard library, so it costs some milliseconds.

- The program ends with its launcher, even if that is killed: the kernel sends it ``SIGNAL``. ``PARENT`` is the number
  of the launcher's process, or ``-`` if that is not known.
- ``NODE`` is the place of the instance among those that are bound to NUMA nodes in turn, or ``-``.
- ``CLOSED`` has an ``i`` if the program gets no input, and an ``o`` if its output is hidden; else it is ``-``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_NODES = Path("/sys/devices/system/node")


def main(arguments: list[str]) -> None:
    """Prepare this process, and replace it by the program."""
    parent, number, node, closed, _, *program = arguments
    die_with(os.getppid() if parent == "-" else int(parent), int(number))
    if node != "-":
        bind(int(node))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0,) * ("i" in closed) + (1, 2) * ("o" in closed):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"poprun: {program[0]} cannot be started: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def die_with(parent: int, number: int) -> None:
    """Have the kernel end this process when its parent ends. Only Linux can; elsewhere the launcher has to."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        sys.exit(1)


def bind(place: int) -> None:
    """Run on the cores of one NUMA node only: the nodes take turns. One node means no binding."""
    nodes = node_cores(_NODES)
    allowed = os.sched_getaffinity(0)
    usable = [cores & allowed for cores in nodes if cores & allowed]
    if len(usable) > 1:
        os.sched_setaffinity(0, usable[place % len(usable)])


def node_cores(folder: Path) -> list[set[int]]:
    """The cores of each NUMA node of this host, in order."""
    found = sorted(folder.glob("node[0-9]*/cpulist"), key=lambda path: int(path.parent.name.removeprefix("node")))
    return [cores(path.read_text(encoding="ascii")) for path in found]


def cores(text: str) -> set[int]:
    """The numbers that the kernel writes as ranges.

    >>> sorted(cores("0-2,8"))
    [0, 1, 2, 8]
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


if __name__ == "__main__":
    main(sys.argv[1:])
