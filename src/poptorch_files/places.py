"""Where the package keeps what outlives a program: one folder of the user."""

from __future__ import annotations

from pathlib import Path

import platformdirs

_BEFORE = ".local/state/poptorch"
"""Where it was in earlier releases, on all systems and whatever ``XDG_STATE_HOME`` said."""


def state_folder() -> Path:
    """The folder of this user; ``RuntimeError`` for a user without a home directory.

    It is ``~/.local/state/poptorch``, unless the system or ``XDG_STATE_HOME`` has another place for such folders. One
    that an earlier release made stays in use.
    """
    before = Path.home() / _BEFORE
    usual = Path(platformdirs.user_state_dir("poptorch", appauthor=False))
    if not usual.is_absolute() or (before.is_dir() and not usual.exists()):
        return before
    return usual
