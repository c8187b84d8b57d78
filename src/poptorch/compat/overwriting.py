"""Registering classes that replace functions while models are captured.

The list of them is in ``poptorch.hooks``, so a second copy of ``poptorch._poplar_executor``, which libraries make by
loading the module again, adds to the same list.
"""

from __future__ import annotations

from collections.abc import Callable

from poptorch import hooks


class _OverwriteContextManager:
    """Where libraries register their classes; each capture uses all of them."""

    @classmethod
    def registerSubsitutionManager(cls, manager: Callable[[], hooks.Substitution]) -> None:
        """Make a ``manager()`` at each capture, call its ``replace()`` before and its ``restore()`` after it.

        Several managers replace in the order of registration and restore in reverse. Registering one twice has the
        effect of once.
        """
        hooks.register_substitution(manager)
