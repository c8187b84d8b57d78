"""What passes say about themselves."""

from __future__ import annotations

UNCHANGED = "unchanged"
"""What a pass says that had nothing to do."""


def summary(changes: int, text: str) -> str:
    """What a pass did, or that it did nothing.

    >>> summary(2, "folded 2 values"), summary(0, "folded 0 values")
    ('folded 2 values', 'unchanged')
    """
    return text if changes else UNCHANGED
