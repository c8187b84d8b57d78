"""Settings in a JSON object: the path of a setter, and its argument or array of arguments. It sets options, no more."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from typing import Any

from poptorch import enums
from poptorch.errors import Error
from poptorch.options.containers import suggestion
from poptorch.options.table import rows_of

_GROUPS = {
    "": "Options",
    "Popart": "_Popart",
    **{name: name for name in ("Training", "Precision", "TensorLocations", "Distributed", "Jit", "_Popart")},
}
"""The groups whose setters can be named, and what the option table calls them."""


def apply(options: Any, text: str, *, origin: str | None = None) -> None:
    """Call the setters that ``text`` names, in its order. ``origin`` says where it comes from, for errors."""
    for path, value in _parse(text, origin).items():
        try:
            setter = _resolve(options, path)
            arguments = value if isinstance(value, list) else [value]
            setter(*(_with_enums(argument) for argument in arguments))
        except Exception as error:
            if origin:
                error.add_note(f"In {origin}: {path[:80]!r}")
            raise


class VariableError(Error, json.JSONDecodeError):
    """An environment variable with text that is no JSON: our error, and that of the JSON reader for its phrases."""

    def __init__(self, message: str, problem: json.JSONDecodeError) -> None:
        Exception.__init__(self, f"'poptorch_py_error': {message}")
        self.type, self.location = "poptorch_py_error", ""
        self.message = self.msg = message
        self.doc, self.pos, self.lineno, self.colno = problem.doc, problem.pos, problem.lineno, problem.colno

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, json.JSONDecodeError(self.msg, self.doc, self.pos))


def _parse(text: str, origin: str | None) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except RecursionError:
        raise _no_json(json.JSONDecodeError("nested too deeply", text, 0), origin) from None
    except json.JSONDecodeError as error:
        raise _no_json(error, origin) from None
    except ValueError as error:  # a number of thousands of digits
        raise _no_json(json.JSONDecodeError(str(error), text, 0), origin) from None
    if not isinstance(parsed, dict):
        prefix, shown = f"{origin}: " if origin else "", text if len(text) <= 80 else f"{text[:80]}..."
        raise ValueError(
            f'{prefix}expected a JSON object such as {{"deviceIterations": 4}}, but got {shown!r}'
        )
    return parsed


def _no_json(error: json.JSONDecodeError, origin: str | None) -> json.JSONDecodeError:
    if origin is None:
        return error
    shown = "it is empty" if not error.doc.strip() else f"{error.msg} at position {error.pos + 1}"
    return VariableError(
        f'The environment variable {origin} is no JSON object such as {{"deviceIterations": 4}}: {shown}. Change it, '
        "or unset it.",
        error,
    )


def _resolve(options: Any, path: str) -> Callable[..., Any]:
    """The setter of a path. What is no row of the option table is not reached, whatever else the objects offer."""
    *groups, name = path.split(".")
    group = ".".join(groups)
    if group not in _GROUPS:
        raise AttributeError(
            f"Invalid attribute {group}. {path!r} is not a setter of Options.{suggestion(group, filter(None, _GROUPS))}"
        )
    setters = [row.method for row in rows_of(_GROUPS[group])]
    if name not in setters:
        hint = suggestion(name, setters)
        raise AttributeError(f"Invalid attribute {name}. {path!r} is not a setter of Options.{hint}")
    setter: Callable[..., Any] = getattr(getattr(options, group) if group else options, name)
    return setter


def _with_enums(value: Any) -> Any:
    """``"OutputMode.All"`` stands for the member; all other text stays text."""
    if not isinstance(value, str):
        return value
    name, _, member = value.partition(".")
    kind = vars(enums).get(name)
    if isinstance(kind, enum.EnumMeta) and member in kind.__members__:
        return kind[member]
    return value
