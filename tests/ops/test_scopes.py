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


class Scoped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.NameScope("NameScope"):
            x = x + x
            with poptorch.NameScope("Inner"):
                x = (x * 2) * 3
        return self.norm(x) + 1


def test_names_of_a_compiled_model_carry_their_scopes() -> None:
    model = poptorch.inferenceModel(Scoped())
    model(torch.ones(1, 2))
    names = model.getTensorNames()
    assert [n for n in names if "/" in n] == [
        "NameScope/Add:0",
        "NameScope/Inner/Mul:0",
        "NameScope/Inner/Mul:0/1",
        "norm/GroupNormalization:0",
    ]
    assert "Add:0" in names  # outside of all scopes
    listing = str(model.program)
    for name in ("NameScope/Add:0", "NameScope/Inner/Mul:0/1", "norm/GroupNormalization:0"):
        assert f"fwd] {name} " in listing


def test_a_scoped_value_can_be_anchored_by_its_name() -> None:
    options = poptorch.Options()
    options.anchorTensor("sum", "NameScope/Add:0")
    model = poptorch.inferenceModel(Scoped(), options)
    model(torch.ones(1, 2))
    assert model.getAnchoredTensor("sum").tolist() == [[2.0, 2.0]]
