"""What an ``Options`` object holds, setting by setting, and what of it differs from the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from poptorch.options.rows import ABSENT
from poptorch.options.table import keys_of, python_side_keys

GROUPS = ("Options", "Training", "Precision", "TensorLocations", "Distributed", "Jit", "_Popart")


def differences(options: Any) -> dict[str, Any]:
    """The settings that differ from the defaults, by path."""
    return {path: value for path, value, default in _settings(options) if not _same(value, default)}


def all_settings(options: Any) -> Iterator[tuple[str, Any]]:
    """The path and the value of each setting that holds something."""
    return ((path, value) for path, value, _ in _settings(options))


def _settings(options: Any) -> Iterator[tuple[str, Any, Any]]:
    """The path, the value and the default of each setting that holds something."""
    for group in GROUPS:
        owner = options if group == "Options" else getattr(options, group)
        prefix = "" if group == "Options" else f"{group}."
        held = owner.options if group == "_Popart" else owner._values
        defaults = {name: key.default for name, key in keys_of(group).items()}
        if group == "_Popart":
            defaults = _popart_defaults()
        for name, value in held.items():
            yield f"{prefix}{name}", value, defaults.get(name, ABSENT)
        for name, key in python_side_keys(group).items():
            yield f"{prefix}{name}", getattr(owner, f"_{name}"), key.default


def _popart_defaults() -> dict[str, Any]:
    from poptorch.options.passthrough import _PopartOptions  # made from setters, as what asks here is

    return _PopartOptions().options


def _same(value: Any, default: Any) -> bool:
    # Strategies and policies have no equality; their texts tell everything that can be set.
    return type(value) is type(default) and (value == default or repr(value) == repr(default))
