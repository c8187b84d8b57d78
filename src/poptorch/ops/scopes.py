"""Naming and tagging the operations that a block of code creates."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from poptorch import ambient


class NameScope:
    """Prefix the names of the operations created inside with ``name``; scopes nest.

    >>> with NameScope("encoder"):
    ...     pass
    """

    def __init__(self, name: str) -> None:
        assert isinstance(name, str), "Parameter to NameScope must be a string"
        self.name = name
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> NameScope:
        scope = ambient.name_scope(self.name)
        scope.__enter__()
        self._entered.append(scope)
        return self

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        self._entered.pop().__exit__(type, value, traceback)


class Attribute:
    """Attach string pairs to the operations created inside, grouped by attribute name.

    Operations with different ``__outline`` pairs, for instance, are never outlined together:

    >>> with Attribute(__outline={"layer": "embedding"}):
    ...     pass
    """

    def __init__(self, **kwargs: dict[str, str]) -> None:
        for group, pairs in kwargs.items():
            if not isinstance(pairs, dict) or any(not isinstance(s, str) for pair in pairs.items() for s in pair):
                raise ValueError(
                    f"Attribute {group!r} must be a dictionary of string pairs, for instance "
                    f'poptorch.Attribute({group}={{"layer": "embedding"}}); got {pairs!r}.'
                )
        self._attributes = kwargs
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> Attribute:
        scope = ambient.attribute_scope(self._attributes)
        scope.__enter__()
        self._entered.append(scope)
        return self

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        self._entered.pop().__exit__(type, value, traceback)
