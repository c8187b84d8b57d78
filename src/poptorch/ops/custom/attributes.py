"""Attributes of custom operators: their types, and the text form in which they travel with the graph."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from poptorch.errors import createPoptorchError

KINDS: dict[type, str] = {float: "Float", int: "Int", str: "String"}
LIST_KINDS: dict[type, str] = {float: "Floats", int: "Ints", str: "Strings"}

REPLICAS, SITE = "__replicas", "__site"
"""Attributes that tell an operator that communicates how many replicas there are, and which of its calls this is."""

ATTR_PREFIX = "attr:"
attributes_lists: list[dict[str, Any] | None] = []
"""The attributes of the custom operators captured so far, in order; :func:`accessAttributes` reads them."""


def accessAttributes(attribute_id_str: str) -> dict[str, Any] | None:
    """The attributes that ``attr:<number>`` stands for, or ``None``.

    >>> accessAttributes("attr:99999") is None
    True
    """
    if not isinstance(attribute_id_str, str) or not attribute_id_str.startswith(ATTR_PREFIX):
        return None
    number = attribute_id_str[len(ATTR_PREFIX) :]
    if not number.isdigit() or int(number) >= len(attributes_lists):
        return None
    return attributes_lists[int(number)]


def check(attributes: Mapping[str, Any] | None) -> None:
    """Refuse keys and values that no attribute type fits.

    >>> check({"axes": [1, 2.0]})
    Traceback (most recent call last):
    ...
    ValueError: The types in a list/tuple attribute must all be the same. (Attribute 'axes')
    """
    for key, value in (attributes or {}).items():
        if not isinstance(key, str):
            raise ValueError(f"All attribute keys must be strings. (Got {key!r})")
        _check_ascii(key)
        if isinstance(value, (list, tuple)):
            _check_items(key, value)
        elif not isinstance(value, (float, int, str)):
            raise ValueError(
                "Attribute values must be floats, ints, strings or a list/tuple containing float, ints or "
                f"strings. (Attribute {key!r} is {type(value).__name__})"
            )
        elif isinstance(value, str):
            _check_ascii(value)


def _check_items(key: str, values: Any) -> None:
    for value in values:
        if not isinstance(value, (float, int, str)):
            raise ValueError(
                "Attribute values must be floats, ints, strings or a list/tuple containing float, ints or "
                f"strings. (Attribute {key!r} contains {type(value).__name__})"
            )
        if isinstance(value, str):
            _check_ascii(value)
    if len({_kind(value) for value in values}) > 1:
        raise ValueError(f"The types in a list/tuple attribute must all be the same. (Attribute {key!r})")


def _check_ascii(text: str) -> None:
    if not text.isascii():
        raise ValueError(f"{text} contains non-ASCII characters.")


def to_text(attributes: Mapping[str, Any] | None) -> str:
    """The attributes as JSON, keys sorted, each value with its type: 1 and 1.0 stay different.

    >>> to_text({"alpha": 0.5, "axes": (1, 2)})
    '{"alpha": ["Float", 0.5], "axes": ["Ints", [1, 2]]}'
    """
    typed = {key: _typed(key, value) for key, value in (attributes or {}).items()}
    return json.dumps(typed, sort_keys=True)


def from_text(text: str) -> dict[str, Any]:
    """The attributes as Python values; floats are rounded to float32, as the device has them."""
    return {key: value for key, (_, value) in json.loads(text).items()}


def typed_from_text(text: str) -> dict[str, tuple[str, Any]]:
    """The attributes with the names of their types."""
    return {key: (kind, value) for key, (kind, value) in json.loads(text).items()}


def _typed(key: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        return [KINDS[_kind(value)], _converted(value)]
    if not value:
        raise createPoptorchError(
            f"Attribute {key!r} is an empty list, so its type (Floats, Ints or Strings) is unknown. Leave it "
            "out instead."
        )
    return [LIST_KINDS[_kind(value[0])], [_converted(item) for item in value]]


def _kind(value: Any) -> type:
    return float if isinstance(value, float) else str if isinstance(value, str) else int


def _converted(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return _as_float32(value)
    if not -(2**63) <= value < 2**63:
        raise createPoptorchError(f"{value} does not fit an Int attribute, which has 64 bits.")
    return int(value)


def _as_float32(value: float) -> float:
    limit = float(np.finfo(np.float32).max)
    if math.isfinite(value) and abs(value) > limit:
        direction = "high" if value > 0 else "low"
        raise createPoptorchError(f"{value:.6g} is too {direction} for a Popart float attribute.")
    return float(np.float32(value))
