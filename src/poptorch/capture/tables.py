"""Tables of a module's parameters or buffers that show stand-ins to the thread that captures it, and to no other.

While a model is captured, other threads may go on using the plain module.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

_MISSING = object()

_origins = WeakIdKeyDictionary()
"""Modules that are shallow copies, with weak references to what they are copies of."""


def note_shallow_copy(copied: nn.Module, origin: nn.Module) -> None:
    """Remember that two module objects share their tables: code of the model may know the one or the other."""
    _origins[copied] = weakref.ref(origin)


def _holders(module: nn.Module) -> Iterator[nn.Module]:
    """The module, and what it is a shallow copy of."""
    holder: nn.Module | None = module
    while holder is not None:
        yield holder
        holder = _origins[holder]() if holder in _origins else None


@contextmanager
def captured_tables(module: nn.Module) -> Iterator[None]:
    """Let this thread, and no other, write to the tables of a module; what it adds, such as late parameters, stays."""
    with ExitStack() as stack:
        for name in ("_parameters", "_buffers"):
            table = module.__dict__[name]
            sharing = [holder for holder in _holders(module) if holder.__dict__.get(name) is table]
            stack.enter_context(_captured(table, name, sharing))
        yield


@contextmanager
def _captured(table: dict[str, Any], name: str, holders: Sequence[nn.Module]) -> Iterator[None]:
    shown = CapturedTable(table)
    for holder in holders:
        holder.__dict__[name] = shown
    try:
        yield
    finally:
        table.update(shown.new_entries())
        for lost in shown.lost_entries():
            del table[lost]
        for holder in holders:
            holder.__dict__[name] = table


class CapturedTable(dict[str, Any]):
    """A table with entries of its own for the thread that made it.

    >>> shown = CapturedTable({"weight": 1})
    >>> shown["weight"] = 2
    >>> thread = threading.Thread(target=lambda: print(shown["weight"], dict(shown)))
    >>> thread.start(); thread.join()
    1 {'weight': 1}
    >>> shown["weight"], dict(shown)
    (2, {'weight': 2})
    """

    def __init__(self, table: dict[str, Any]) -> None:
        super().__init__()
        self.original = table
        self._own = dict(table)
        self._thread = threading.get_ident()

    def _shown(self) -> dict[str, Any]:
        return self._own if threading.get_ident() == self._thread else self.original

    def new_entries(self) -> dict[str, Any]:
        """What the capturing thread put here that was not here before, or was another value."""
        return {k: v for k, v in self._own.items() if self.original.get(k, _MISSING) is not v}

    def lost_entries(self) -> list[str]:
        """The names that the capturing thread removed."""
        return [name for name in self.original if name not in self._own]

    def __getitem__(self, name: str) -> Any:
        return self._shown()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._shown()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._shown()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._shown()

    def __iter__(self) -> Iterator[str]:
        return iter(self._shown())

    def __len__(self) -> int:
        return len(self._shown())

    def __eq__(self, other: object) -> bool:
        return self._shown() == other

    def __repr__(self) -> str:
        return repr(self._shown())

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return self._shown().keys()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return self._shown().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return self._shown().items()

    def get(self, name: str, default: Any = None) -> Any:
        return self._shown().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        return self._shown().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        return self._shown().setdefault(name, default)

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._shown().update(*args, **kwargs)

    def clear(self) -> None:
        self._shown().clear()

    def copy(self) -> dict[str, Any]:
        return self._shown().copy()
