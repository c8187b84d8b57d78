"""Turns rows of the option table into methods with signatures and documentation."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from poptorch._logging import logger
from poptorch.options.containers import require_type
from poptorch.options.rows import ABSENT, Key, Option

SETTERS_MODULE = "poptorch.options.setters"

_EFFECT_WORDS = {
    "host": "Effect",
    "modelled": "Effect (IPU Model only)",
    "none": "No effect on virtual IPUs",
    "later": "No effect yet",
}


def make_setters(name: str, rows: Iterable[Option]) -> type:
    """A class with one method for each row, and one read-only property for each Python-side key."""
    body: dict[str, Any] = {
        "__doc__": "Setters made from the option table.",
        "__module__": SETTERS_MODULE,
        "__slots__": (),
    }
    for row in rows:
        body[row.method] = make_setter(row)
        body.update({key.name: _reader(key, row) for key in row.keys if key.store == "python"})
    return type(name, (), body)


def make_setter(row: Option) -> Callable[..., Any]:
    """The method that ``row`` describes. The order is always: frozen? arguments? checks, then storing."""
    signature = row.signature()

    def setter(self: Any, *args: Any, **kwargs: Any) -> Any:
        if row.blocked_when_frozen:
            self.checkIsFrozen(row.key)
        if row.replacement is not None:
            _warn_deprecated(row.qualified_name, row.replacement)
        arguments = _bind(row, signature, self, args, kwargs)
        if row.apply is not None:
            row.apply(self, *arguments)
        else:
            _store_as_it_is(self, row, *arguments)
        return self if row.returns_self else None

    setter.__module__ = SETTERS_MODULE
    setter.__name__ = row.method
    setter.__qualname__ = row.qualified_name
    setter.__doc__ = describe(row)
    setter.__signature__ = signature  # type: ignore[attr-defined]
    setter.__annotations__ = {parameter.name: parameter.annotation for parameter in row.parameters}
    return setter


def _bind(
    row: Option, signature: inspect.Signature, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    for old, new in row.renamed_parameters.items():
        if old in kwargs and new not in kwargs:
            _warn_deprecated(f"{row.qualified_name}(…, {old}=…)", f"{new}=…")
            kwargs[new] = kwargs.pop(old)
    try:
        bound = signature.bind(owner, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{row.method}(): {error}") from None
    bound.apply_defaults()
    return bound.args[1:]


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


def _reader(key: Key, row: Option) -> property:
    def read(self: Any) -> Any:
        return getattr(self, f"_{key.name}")

    return property(read, doc=f"What ``{row.method}`` set; starts as ``{key.default!r}``.")


def _warn_deprecated(old: str, new: str) -> None:
    logger.warning("[Deprecated] %s comes from an earlier release: use %s.", old, new)


def describe(row: Option) -> str:
    """The documentation of the setter that ``row`` describes, with an example that runs."""
    parts = [textwrap.dedent(row.doc).strip()]
    parts.append(f"{_EFFECT_WORDS[row.effect]}: {row.effect_note}")
    defaults = [f"``{key.name}`` = ``{key.default!r}``" for key in row.keys if key.default is not ABSENT]
    if defaults:
        parts.append(f"Starts as {', '.join(defaults)}.")
    for refusal in row.refusals[:1]:
        parts.append(f"A wrong argument raises ``{refusal.error.__name__}``.")
    if row.since or row.until:
        since, until = row.since or "the first release", row.until or "today"
        parts.append(f"In the original from {since} to {until}.")
    if row.replacement:
        parts.append(f"Deprecated: use ``{row.replacement}``.")
    parts.append("\n".join(example_lines(row)))
    text = "\n\n".join(textwrap.fill(part, 100) if ">>>" not in part else part for part in parts)
    return textwrap.indent(text, "    ").strip() + "\n"


def example_lines(row: Option) -> list[str]:
    """The example as it would be typed in a Python session, with its output."""
    needs_torch = re.search(r"\btorch\.", row.example) is not None
    lines = [">>> import poptorch, torch" if needs_torch else ">>> import poptorch"]
    if row.group == "TensorLocationSettings":
        lines += [">>> settings = poptorch.TensorLocationSettings()"]
        owner = "settings"
    else:
        lines += [">>> opts = poptorch.Options()"]
        owner = "opts" if row.group == "Options" else f"opts.{row.group}"
    lines.append(f">>> _ = {owner}.{row.method}({row.example})")
    if row.keys:
        lines += [f">>> {reading_expression(owner, row.keys[0], row)}", row.stored]
    return lines


def reading_expression(owner: str, key: Key, row: Option) -> str:
    """The expression that shows what ``key`` holds."""
    if key.store == "popart":
        return f"opts._Popart.options[{key.name!r}]"
    # A key that is called like its setter cannot be read as an attribute.
    return f"{owner}({key.name!r})" if key.name == row.method else f"{owner}.{key.name}"
