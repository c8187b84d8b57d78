"""Programs that wait for each other's IPUs: none of them would ever go on.

Each has IPUs, and waits for some that another one of them has. Programs that still do something else are never among
them: they may free what they have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from poptorch.devices.groups import Group, groups_of
from poptorch.devices.sharing import Owner, Wish


def victim(owners: Sequence[Owner], wishes: Sequence[Wish], only_wait: Collection[int], total: int) -> int | None:
    """The process that should give up, so that the others can go on: of those that can help, the last to wait.

    ``only_wait`` are the processes that do nothing else.
    """
    held = _held(owners)
    positions: dict[int, int] = {}
    for wish in wishes:
        positions[wish.pid] = max(wish.position, positions.get(wish.pid, 0))
    waiting = {pid for pid in only_wait if pid in positions and pid}
    stuck = _stuck(waiting, held, wishes, total)
    helpful = [pid for pid in stuck if held.get(pid) and _helps(pid, stuck, held, wishes, total)]
    return max(helpful, key=positions.__getitem__, default=None)


def _held(owners: Iterable[Owner]) -> dict[int, set[int]]:
    held: dict[int, set[int]] = {}
    for owner in owners:
        held.setdefault(owner.pid, set()).update(owner.ipus)
    return held


def _stuck(waiting: set[int], held: Mapping[int, set[int]], wishes: Sequence[Wish], total: int) -> set[int]:
    """Those that cannot get anything they wait for, unless one of them gives up what it has."""
    stuck = set(waiting)
    while True:
        taken = set().union(*(held.get(pid, set()) for pid in stuck))
        free = {
            wish.pid
            for wish in wishes
            if wish.pid in stuck and not all(taken & set(g.ipus) for g in _groups(wish, total))
        }
        if not free:
            return stuck
        stuck -= free


def _helps(pid: int, stuck: set[int], held: Mapping[int, set[int]], wishes: Sequence[Wish], total: int) -> bool:
    """Whether others could go on if one of them had nothing and waited for nothing."""
    others = stuck - {pid}
    return _stuck(others, held, wishes, total) != others


def _groups(wish: Wish, total: int) -> Sequence[Group]:
    among = wish.among(total)
    return [among] if among.size == wish.ipus else groups_of(wish.ipus, total)
