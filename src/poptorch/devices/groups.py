"""Groups of IPUs that can be attached together, and their device ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """IPUs that can be attached together: ``size`` of them, aligned, from number ``first``."""

    first: int
    size: int

    @property
    def ipus(self) -> range:
        """The numbers of the IPUs."""
        return range(self.first, self.first + self.size)

    def overlaps(self, other: Group) -> bool:
        """Whether some IPU is in both groups."""
        return self.first < other.first + other.size and other.first < self.first + self.size


def id_of(group: Group, total: int) -> int:
    """The device id of a group in a system of ``total`` IPUs: singles come first, then pairs, then fours ...

    >>> id_of(Group(3, 1), 64), id_of(Group(0, 2), 64), id_of(Group(0, 64), 64)
    (3, 64, 126)
    """
    return 2 * total - 2 * total // group.size + group.first // group.size


def group_of(device_id: int, total: int) -> Group:
    """The inverse of :func:`id_of`.

    >>> group_of(65, 64)
    Group(first=2, size=2)
    """
    size = 1
    while size < total and id_of(Group(0, 2 * size), total) <= device_id:
        size *= 2
    return Group((device_id - id_of(Group(0, size), total)) * size, size)


def groups_of(size: int, total: int) -> list[Group]:
    """All groups of that many IPUs, in the order of their ids.

    >>> groups_of(2, 4)
    [Group(first=0, size=2), Group(first=2, size=2)]
    """
    return [Group(first, size) for first in range(0, total, size)]
