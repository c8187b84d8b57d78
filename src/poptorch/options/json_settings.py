"""Settings in a JSON object: the path of a setter, and its argument or array of arguments. It sets options, no more."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from itertools import permutations
from typing import Any

from poptorch import enums
from poptorch.errors import Error, coded
from poptorch.options.comparison import all_settings, differences
from poptorch.options.containers import suggestion
from poptorch.options.rows import Option
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

    code = "PT3004"

    def __init__(self, text: str, problem: json.JSONDecodeError) -> None:
        message = coded(text, self.code)
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
        raise ValueError(f'{prefix}expected a JSON object such as {{"deviceIterations": 4}}, but got {shown!r}')
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


def written(options: Any) -> str:
    """The text that makes these settings of new ``Options``. Each setter is tried on a new object: what it does not
    make as it is here cannot be written, and is named in an error."""
    left = differences(options)
    settings: dict[str, Any] = {}
    for group, row in _setters():
        arguments = _arguments(options, group, row, left)
        if arguments is not None:
            settings[f"{group}.{row.method}" if group else row.method] = arguments
            left = {path: value for path, value in left.items() if path not in _paths(group, row)}
    if len(left) == 1:  # one setting of the backend that has no setter of its own
        ((path, value),) = left.items()
        row = next(row for row in rows_of("_Popart") if row.method == "set")
        name = path.removeprefix("_Popart.")
        if name != path and _makes(type(options), "_Popart", row, [name, value], left):
            settings["_Popart.set"], left = [name, value], {}
    if left:
        named = ", ".join(f"{path} = {value!r}" for path, value in left.items())
        raise ValueError(f"JSON settings cannot express {named}: set them in code, or in a file for loadFromFile.")
    return json.dumps(settings, indent=1)


def _setters() -> list[tuple[str, Option]]:
    """The setters that are not of earlier releases, with the names of their groups."""
    groups = {name: group for name, group in _GROUPS.items() if name != "Popart"}
    return [(name, row) for name, group in groups.items() for row in rows_of(group) if row.replacement is None]


def _paths(group: str, row: Option) -> dict[str, Any]:
    """Where the keys of a setter are, and what type each has."""
    prefixes = {"popart": "_Popart."}
    return {f"{prefixes.get(key.store, f'{group}.' if group else '')}{key.name}": key.type for key in row.keys}


def _arguments(options: Any, group: str, row: Option, left: dict[str, Any]) -> Any:
    """The JSON argument(s) with which ``row``'s setter makes settings that are left, or ``None``."""
    wanted = {path: left[path] for path in _paths(group, row) if path in left}
    if not wanted:
        return None
    everything = dict(all_settings(options))
    held = [everything.get(path) for path in _paths(group, row)]
    most = min(len(held), len(row.parameters))
    candidates = [held[:count] for count in (*range(1, most + 1), 0)]  # as few arguments as serve
    candidates += [[held[place] for place in order] for order in permutations(range(len(held))) if 1 < len(held) < 4]
    for candidate in candidates:
        values = [_as_json(value, each.annotation) for value, each in zip(candidate, row.parameters, strict=False)]
        argument = values[0] if len(values) == 1 and not isinstance(values[0], list) else values
        if _makes(type(options), group, row, argument, wanted):
            return argument
    return None


def _as_json(value: Any, annotation: Any) -> Any:
    if isinstance(annotation, enum.EnumMeta) and not isinstance(value, annotation) and value is not None:
        value = annotation(value)
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else value


def _makes(kind: type, group: str, row: Option, argument: Any, wanted: dict[str, Any]) -> bool:
    """Whether the argument, read back from text, makes new options differ from the defaults in just what is wanted."""
    made = kind()
    try:
        apply(made, json.dumps({f"{group}.{row.method}" if group else row.method: argument}))
    except Exception:  # noqa: BLE001 - any refusal of a setter means that these are not its arguments
        return False
    found = differences(made)
    return found.keys() == wanted.keys() and all(repr(found[path]) == repr(wanted[path]) for path in wanted)
