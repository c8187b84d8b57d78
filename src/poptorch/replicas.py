"""What an operation sees of the other replicas while a program runs: a state of each thread.

Who runs a program says here which replica the thread works for (:func:`inside`); operations that communicate ask
(:func:`current`). Neither imports the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from poptorch.errors import createPoptorchError


class Replica(Protocol):
    """One replica in the middle of a micro-batch."""

    number: int
    """Its number among the replicas of all processes."""

    count: int
    """How many replicas there are in all processes."""

    def exchange(
        self,
        value: torch.Tensor,
        members: Sequence[int],
        site: int,
        combine: Callable[[list[torch.Tensor]], torch.Tensor],
    ) -> torch.Tensor:
        """What ``combine`` makes of the values of all members, in their order; they wait for each other.

        ``site`` numbers the calls of a program, and is the same in all replicas.
        """


class _State(threading.local):
    replica: Replica | None = None


_state = _State()


def current() -> Replica | None:
    """The replica that this thread works for; ``None`` where no program with communication runs."""
    return _state.replica


@contextmanager
def inside(replica: Replica | None) -> Iterator[None]:
    """This thread works for a replica; what held before comes back in any case."""
    before, _state.replica = _state.replica, replica
    try:
        yield
    finally:
        _state.replica = before


def members_of(number: int, grouping: Sequence[int]) -> list[int]:
    """The replicas in the group of one; ``grouping`` is how many there are, the stride, and the size of a group.

    >>> members_of(5, [8, 1, 4]), members_of(5, [8, 2, 4])
    ([4, 5, 6, 7], [1, 3, 5, 7])
    """
    _, stride, size = grouping
    first = number // (stride * size) * (stride * size) + number % stride
    return [first + i * stride for i in range(size)]


def required(count: int) -> Replica:
    """The replica that this thread works for, where there are several."""
    replica = _state.replica
    if replica is None:
        raise createPoptorchError(
            f"A value of {count} replicas is needed where only one is: the operation communicates between replicas, "
            "and can only run in the compiled program."
        )
    return replica
