"""Settings in a JSON object: the path of a setter, and its argument or array of arguments."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from typing import Any

from poptorch import enums
from poptorch.options.containers import suggestion

_MISSING = object()


def apply(options: Any, text: str, *, origin: str | None = None) -> None:
    """Call the setters that ``text`` names, in its order. ``origin`` says where it comes from, for errors."""
    for path, value in _parse(text, origin).items():
        setter = _resolve(options, path)
        arguments = value if isinstance(value, list) else [value]
        setter(*(_with_enums(argument) for argument in arguments))


def _parse(text: str, origin: str | None) -> dict[str, Any]:
    prefix = f"{origin}: " if origin else ""
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(f"{prefix}{error.msg}", error.doc, error.pos) from None
    if not isinstance(parsed, dict):
        raise ValueError(
            f'{prefix}expected a JSON object such as {{"deviceIterations": 4}}, but got {text!r}'
        )
    return parsed


def _resolve(options: Any, path: str) -> Callable[..., Any]:
    found = options
    for name in path.split("."):
        step = _MISSING if name.startswith("__") else getattr(found, name, _MISSING)
        if step is _MISSING:
            raise AttributeError(
                f"Invalid attribute {name}. {path!r} is not a setter of Options.{_near(found, name)}"
            )
        found = step
    if not callable(found) or hasattr(found, "checkIsFrozen"):
        raise AttributeError(
            f"Invalid attribute {path}. It is not a setter; name one, with its argument as the value."
            f"{_near(options, path)}"
        )
    return found


def _near(owner: Any, name: str) -> str:
    kind = type(owner)
    return suggestion(
        name, (known for known in dir(kind) if known[0] != "_" and callable(getattr(kind, known)))
    )


def _with_enums(value: Any) -> Any:
    """``"OutputMode.All"`` stands for the member; all other text stays text."""
    if not isinstance(value, str):
        return value
    name, _, member = value.partition(".")
    kind = vars(enums).get(name)
    if isinstance(kind, enum.EnumMeta) and member in kind.__members__:
        return kind[member]
    return value
