"""Name and attribute scopes, and tensor numbers."""

from __future__ import annotations

import pytest
import torch

import poptorch
from poptorch import ambient


def test_names_nest_and_end() -> None:
    with ambient.capturing(ambient.CaptureContext()) as context:
        assert context is not None
        with poptorch.NameScope("outer") as scope, poptorch.NameScope("inner"):
            assert context.name_scopes == ["outer", "inner"]
        with scope:  # usable again
            assert context.name_scopes == ["outer"]
        assert context.name_scopes == []


def test_names_are_strings() -> None:
    with pytest.raises(AssertionError, match="Parameter to NameScope must be a string"):
        poptorch.NameScope(1)


def test_attributes_merge_and_return() -> None:
    with ambient.capturing(ambient.CaptureContext()) as context:
        assert context is not None
        with poptorch.Attribute(__outline={"layer": "embedding"}, other={"a": "b"}):
            with poptorch.Attribute(__outline={"layer": "dense", "n": "1"}):
                assert context.attributes == {"__outline": {"layer": "dense", "n": "1"}, "other": {"a": "b"}}
            assert context.attributes == {"__outline": {"layer": "embedding"}, "other": {"a": "b"}}
        assert context.attributes == {}


@pytest.mark.parametrize("pairs", ["text", {"a": 1}, {1: "a"}, None])
def test_attributes_are_string_pairs(pairs: object) -> None:
    with pytest.raises(ValueError, match="dictionary of string pairs"):
        poptorch.Attribute(group=pairs)


def test_scopes_do_nothing_outside_of_a_model() -> None:
    with poptorch.NameScope("a"), poptorch.Attribute(b={"c": "d"}):
        assert ambient.current() is None


@pytest.mark.parametrize("mode", ["fake", "real"])
def test_tensor_numbers(capture, mode: str) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        numbers = [poptorch.getIpuTensorId(tensor) for tensor in (x, y, x, y)]
        assert all(isinstance(number, int) for number in numbers)
        assert numbers[:2] == numbers[2:]
        assert numbers[0] != numbers[1]
        return y

    capture(forward, torch.ones(2), mode=mode)


def test_only_captured_tensors_have_numbers(capture) -> None:
    phrase = "You may only call getIpuTensorId on an IPU tensor"
    with pytest.raises(poptorch.Error, match=phrase):
        poptorch.getIpuTensorId(torch.ones(1))
    with pytest.raises(poptorch.Error, match=phrase):
        capture(lambda x: poptorch.getIpuTensorId("x"), torch.ones(1))
