"""What the consumer and the background process say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from poptorch.data.ring import RingLayout, Rows

# --- from the background process ---------------------------------------------------------------------------


class Ready(NamedTuple):
    """The first item is known; the descriptor of the ring follows on the same connection."""

    layout: RingLayout


class Began(NamedTuple):
    """``epoch`` of a loader that can be resumed begins; ``start`` is what decides about its order."""

    epoch: int
    start: dict[str, Any]


class Filled(NamedTuple):
    """A slot holds an item of ``epoch``; ``rows`` is given when it is not full."""

    epoch: int
    slot: int
    rows: Rows | None


class Ended(NamedTuple):
    """``epoch`` has no more items."""

    epoch: int


class Failed(NamedTuple):
    """The process gives up: one line about the cause, and the whole traceback."""

    summary: str
    traceback: str


# --- from the consumer -------------------------------------------------------------------------------------


class Begin(NamedTuple):
    """Somebody iterates: load more than the first item."""


class Release(NamedTuple):
    """The item in ``slot`` is no longer needed."""

    slot: int


class GoTo(NamedTuple):
    """Be in ``epoch`` or a later one: leave an earlier one unfinished."""

    epoch: int


class Stop(NamedTuple):
    """End the process."""


# --- at the start ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """How the background process loads."""

    buffer_size: int
    load_indefinitely: bool
    early_preload: bool
    busy_wait: bool
    rebatched_size: int | None
    keep_incomplete: bool
    """Whether the rows left at the end of an epoch are passed on when re-batching."""
    rows_may_vary: bool
    """Whether an item may have fewer rows than the first one."""
    rng_state: bytes
    seed: int
    parent_pid: int
    start_method: str | None
    """How the consumer would start PyTorch's workers; ``None`` is Python's default."""
