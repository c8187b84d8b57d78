"""Attributes of custom operators: types, limits, text form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from poptorch.ops.custom import attributes


@pytest.mark.parametrize(
    ("given_attributes", "phrase"),
    [
        ({1: 2}, "All attribute keys must be strings."),
        ({"a": None}, "Attribute values must be floats, ints, strings or a list/tuple"),
        ({"a": {"b": 1}}, "Attribute values must be floats, ints, strings or a list/tuple"),
        ({"a": [None]}, "Attribute values must be floats, ints, strings or a list/tuple"),
        ({"a": torch.ones(1)}, "Attribute values must be floats, ints, strings or a list/tuple"),
        ({"a": [1, 2.0]}, "The types in a list/tuple attribute must all be the same."),
        ({"a": ("x", 1)}, "The types in a list/tuple attribute must all be the same."),
        ({"a": "naïve"}, "naïve contains non-ASCII characters."),
        ({"ключ": 1}, "ключ contains non-ASCII characters."),
        ({"a": ["b", "é"]}, "é contains non-ASCII characters."),
    ],
)
def test_misuse(given_attributes: Any, phrase: str) -> None:
    x = torch.ones(1)
    with pytest.raises(ValueError, match=phrase):
        poptorch.custom_op([x], "Any", "any", 1, [x], attributes=given_attributes)


@pytest.mark.parametrize(
    ("value", "phrase"),
    [
        (1.7976931348623157e308, r"1.79769e\+308 is too high for a Popart float attribute."),
        (-1.7976931348623157e308, r"-1.79769e\+308 is too low for a Popart float attribute."),
        ([1.0, 3.5e38], r"3.5e\+38 is too high for a Popart float attribute."),
        ([], "empty list"),
        (2**63, "64 bits"),
    ],
)
def test_values_that_do_not_fit(value: Any, phrase: str) -> None:
    with pytest.raises(poptorch.Error, match=phrase):
        attributes.to_text({"a": value})


def test_integers_and_floats_differ_and_order_does_not_matter() -> None:
    assert attributes.to_text({"a": 1}) != attributes.to_text({"a": 1.0})
    assert attributes.to_text({"a": [1, 2]}) != attributes.to_text({"a": [1.0, 2.0]})
    assert attributes.to_text({"a": 1, "b": 2}) == attributes.to_text({"b": 2, "a": 1})
    assert attributes.to_text({"a": (1, 2)}) == attributes.to_text({"a": [1, 2]})
    assert attributes.to_text({"a": True}) == attributes.to_text({"a": 1})
    assert attributes.to_text(None) == attributes.to_text({})


_ASCII = st.text(st.characters(max_codepoint=126, min_codepoint=1))
_VALUES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(width=32, allow_nan=False), _ASCII)
_LISTS = st.one_of(
    *(st.lists(s, min_size=1) for s in (st.integers(-9, 9), st.floats(width=32, allow_nan=False), _ASCII))
)


@given(st.dictionaries(_ASCII, st.one_of(_VALUES, _LISTS)))
def test_text_and_back(values: dict[str, Any]) -> None:
    attributes.check(values)
    back = attributes.from_text(attributes.to_text(values))
    assert back == values
    assert {key: type(value) for key, value in back.items()} == {key: type(value) for key, value in values.items()}


def test_access_by_number() -> None:
    from poptorch import ATTR_PREFIX, attributes_lists

    assert poptorch.accessAttributes("no prefix") is None
    assert poptorch.accessAttributes(f"{ATTR_PREFIX}x") is None
    attributes_lists.append({"a": 1})
    assert poptorch.accessAttributes(f"{ATTR_PREFIX}{len(attributes_lists) - 1}") == {"a": 1}
