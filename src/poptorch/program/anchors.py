"""Inner values that users ask for by name."""

from __future__ import annotations

from dataclasses import dataclass

from poptorch.enums import OutputMode


@dataclass(frozen=True)
class Anchor:
    """An inner value that is returned by name after each call."""

    short_name: str
    long_name: str
    mode: OutputMode
    period: int
    parameter: str | None = None
    """Set when the value is a parameter after its update rather than a value of the micro-batch."""
