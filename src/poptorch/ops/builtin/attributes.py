"""Attributes of built-in operators: the kind and default of each, and how other kinds of values are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poptorch.errors import createPoptorchError

REQUIRED: Any = object()
"""The default of an attribute that has none."""


@dataclass(frozen=True)
class TypedAttribute:
    """The kind of one attribute and what holds if it is not given."""

    kind: str
    default: Any = REQUIRED

    def read(self, name: str, given: Mapping[str, tuple[str, Any]]) -> Any:
        """The value among those given with their kinds, or the default.

        >>> Float(0.5).read("alpha", {"alpha": ("Int", 2)}), Float(0.5).read("alpha", {})
        (2.0, 0.5)
        """
        if name not in given:
            if self.default is REQUIRED:
                raise createPoptorchError(f"no attribute key {name}. It is required, and of kind {self.kind}.")
            return self.default
        kind, value = given[name]
        converted = _converted(self.kind, kind, value)
        if converted is None:
            raise createPoptorchError(f"The attribute {name!r} must be of kind {self.kind}, not {kind} ({value!r}).")
        return converted


def _converted(wanted: str, kind: str, value: Any) -> Any:
    """The value as an attribute of the wanted kind; ``None`` if it has no meaning there."""
    if wanted == kind:
        return value
    if wanted in ("Floats", "Ints") and kind in ("Floats", "Ints"):
        items = [_converted(wanted[:-1], kind[:-1], item) for item in value]
        return None if None in items else items
    match wanted, kind:
        case "Float", "Int":
            return float(value)
        case "Int", "Float":
            return int(value) if float(value).is_integer() else None
        case "Int", "String":
            return 0  # the backend finds its slot for a number empty; programs rely on that
    return None


def Int(default: Any = REQUIRED) -> TypedAttribute:
    """A whole number."""
    return TypedAttribute("Int", default)


def Float(default: Any = REQUIRED) -> TypedAttribute:
    """A number; has the precision of float32."""
    return TypedAttribute("Float", default)


def String(default: Any = REQUIRED) -> TypedAttribute:
    """A text."""
    return TypedAttribute("String", default)


def Ints(default: Any = REQUIRED) -> TypedAttribute:
    """Whole numbers."""
    return TypedAttribute("Ints", default)


def Floats(default: Any = REQUIRED) -> TypedAttribute:
    """Numbers."""
    return TypedAttribute("Floats", default)


def Strings(default: Any = REQUIRED) -> TypedAttribute:
    """Texts."""
    return TypedAttribute("Strings", default)


def refused(name: str) -> TypedAttribute:
    """An attribute of the standard that the backend does not implement."""
    return _Refused("", None) if name else _Refused("")


class _Refused(TypedAttribute):
    """Giving it is an error."""

    def read(self, name: str, given: Mapping[str, tuple[str, Any]]) -> Any:
        if name in given:
            raise createPoptorchError(f"The attribute '{name}' is not supported.")
        return None
