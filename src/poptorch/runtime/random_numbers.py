"""Where the random numbers of a device are: their seed, and how many micro-batches have drawn."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from poptorch.executable.groups import HostLoop
from poptorch.runtime.values.random_source import GroupedRandom, RandomSource, mix

_UPDATES = -1
"""Stands for the replica in the random numbers of weight updates, which are the same on all replicas."""


class RandomNumbers:
    """Seed and position. Keys have the *global* number of a replica: two processes draw different numbers."""

    def __init__(self, loop: HostLoop) -> None:
        self._loop = loop
        self.seed: int | None = None
        self.position = 0
        """How many micro-batches each replica has run."""

    @property
    def state(self) -> list[int] | None:
        """Seed and position as users see them; ``None`` before anything fixed them."""
        if self.seed is None:
            return None
        return [self.seed, self.position] if self.position else [self.seed]

    @state.setter
    def state(self, state: Sequence[int]) -> None:
        self.seed = int(state[0])
        self.position = int(state[1]) if len(state) > 1 else 0

    def fix(self) -> int:
        """The seed; one from the system where nothing fixed it."""
        if self.seed is None:
            self.seed = secrets.randbits(62)
        return self.seed

    def of_group(self, position: int, replica: int) -> RandomSource:
        """The numbers of the group of micro-batches whose first one is at ``position``; ``replica`` is a local one."""
        seed, size, number = self.fix(), self._loop.group_size, self._loop.global_replica(replica)
        if size == 1:
            return RandomSource(seed, position, number)
        return GroupedRandom([mix(seed, position + i, number) for i in range(size)])

    def of_update(self) -> RandomSource:
        """The numbers of the next weight update."""
        return RandomSource(self.seed or 0, self.position, _UPDATES)
