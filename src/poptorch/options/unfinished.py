"""Options whose part of the package is still to come: compiling with them says so."""

from __future__ import annotations

from typing import Any

from poptorch._logging import warn_once
from poptorch.options.rows import ABSENT, Key, Option
from poptorch.options.table import OPTIONS


def mention_unfinished(options: Any) -> list[str]:
    """Warn, once a process, about each setting that has no effect yet; returns the names of all that are set.

    >>> from poptorch import Options
    >>> mention_unfinished(Options())
    []
    """
    found = [row for row in OPTIONS if row.effect == "later" and any(_is_set(options, row, key) for key in row.keys)]
    for row in found:
        warn_once(("unfinished", row.method), f"{row.qualified_name} has no effect yet: {row.effect_note}")
    return [row.qualified_name for row in found]


def _is_set(options: Any, row: Option, key: Key) -> bool:
    if key.store == "popart":
        value = options._Popart.options.get(key.name, ABSENT)
    else:
        holder = options if row.group == "Options" else getattr(options, row.group)
        value = holder.toDict().get(key.name, ABSENT) if row.group != "Options" else _value(holder, key.name)
    default = False if key.default is ABSENT and value is False else key.default
    return value is not ABSENT and value != default


def _value(options: Any, name: str) -> Any:
    return getattr(options, name) if options.exists(name) else ABSENT
