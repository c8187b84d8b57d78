"""What every generated setter does: frozen? earlier names? checks, then storing."""

from __future__ import annotations

from typing import Any, TypeVar

from poptorch._logging import warn_deprecated
from poptorch.options.containers import require_type
from poptorch.options.rows import ABSENT, Key, Option
from poptorch.options.table import ROWS_BY_NAME

Owner = TypeVar("Owner")


def call(owner: Owner, name: str, *arguments: Any, **earlier_names: Any) -> Owner:
    """Set the option ``name`` (``"Training.gradientAccumulation"``) of ``owner``, and return ``owner``.

    ``earlier_names`` are keyword arguments that an earlier release called otherwise, ``ABSENT`` if not given.
    """
    row = ROWS_BY_NAME[name]
    container: Any = owner
    if row.blocked_when_frozen:
        container.checkIsFrozen(row.key)
    if row.replacement is not None:
        warn_deprecated(row.qualified_name, row.replacement)
    if earlier_names:
        arguments = _renamed(row, arguments, earlier_names)
    if row.apply is not None:
        row.apply(container, *arguments)
    else:
        _store_as_it_is(container, row, *arguments)
    return owner


def _renamed(row: Option, arguments: tuple[Any, ...], earlier_names: dict[str, Any]) -> tuple[Any, ...]:
    positions = {parameter.name: place for place, parameter in enumerate(row.parameters)}
    values = list(arguments)
    for old, value in earlier_names.items():
        if value is ABSENT:
            continue
        new = row.renamed_parameters[old]
        if values[positions[new]] != row.parameters[positions[new]].default:
            raise TypeError(f"{row.method}(): {old!r} is the earlier name of {new!r}: give one of them")
        warn_deprecated(f"{row.qualified_name}(…, {old}=…)", f"{new}=…")
        values[positions[new]] = value
    return tuple(values)


def _store_as_it_is(owner: Any, row: Option, value: Any) -> None:
    (key,) = row.keys
    if key.store == "popart":
        owner._popart.set(key.name, value)
    elif key.store == "python":
        _store_on_python_side(owner, key, value)
    else:
        owner.createOrSet(**{key.name: value})


def _store_on_python_side(owner: Any, key: Key, value: Any) -> None:
    require_type(key.name, value, key.type)
    setattr(owner, f"_{key.name}", value)
