"""Inner values that users ask for by name."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from poptorch.enums import OutputMode

SPECIFIC = "___specific___"
"""Between the name of a number that steers the update and the parameter that it is for."""


class Held(enum.Enum):
    """What the device holds from one update to the next, beside the values that a micro-batch computes."""

    WEIGHT = "weight"
    STATE = "state"
    """A tensor that the optimizer keeps."""

    SCALAR = "scalar"
    """A number that steers the update, such as a learning rate."""


@dataclass(frozen=True)
class Anchor:
    """An inner value that is returned by name after each call."""

    short_name: str
    long_name: str
    mode: OutputMode
    period: int
    held: Held | None = None
    """Set when the value belongs to the weight update, and not to a micro-batch."""

    name: str = ""
    """Of what is held: the name of a parameter, of a piece of state, of a number."""
