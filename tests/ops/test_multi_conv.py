"""``MultiConv``: settings, scopes and their tags."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums
from poptorch import MultiConv, MultiConvPlanType, ambient

X, WEIGHT = torch.randn(1, 2, 6), torch.randn(2, 2, 3)


class _Tags:
    """What the operations of a scope carry, read through a torch function mode beneath it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []

    def conv(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x, _Recording.wrap(WEIGHT, self))


class _Recording(torch.Tensor):
    """A weight that notes the ambient attributes when a convolution uses it."""

    @staticmethod
    def wrap(tensor: torch.Tensor, tags: _Tags) -> torch.Tensor:
        wrapped = tensor.as_subclass(_Recording)
        wrapped.tags = tags  # type: ignore[attr-defined]
        return wrapped

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        context = ambient.current()
        for value in args:
            if isinstance(value, _Recording) and context is not None and func is F.conv1d:
                value.tags.seen.append(context.attributes["__multi_conv"])  # type: ignore[attr-defined]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def test_convolutions_of_a_scope_carry_its_number_their_index_and_the_options() -> None:
    plan = (
        MultiConv().availableMemoryProportions((0.1, 0.2)).partialsTypes(torch.half).planType(MultiConvPlanType.Serial)
    )
    plan.perConvReservedTiles(20).cycleBackOff(0.3).enableConvDithering([True, False])
    tags = _Tags()
    with ambient.capturing(ambient.CaptureContext()) as context:
        for _ in range(2):  # one object, several scopes
            with plan:
                y = tags.conv(X)
                y = y + 1
                tags.conv(X * 2)
    assert [(tag["id"], tag["index"]) for tag in tags.seen] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert json.loads(tags.seen[0]["options"]) == {
        "availableMemoryProportions": [0.1, 0.2],
        "partialsTypes": "half",
        "planType": "Serial",
        "perConvReservedTiles": 20,
        "cycleBackOff": 0.3,
        "enableConvDithering": [True, False],
    }
    assert context is not None
    assert context.attributes == {}


def test_misuse_of_scopes() -> None:
    with ambient.capturing(ambient.CaptureContext()):
        with pytest.raises(poptorch.Error, match="Unexpected end_multi_conv"), MultiConv():
            X + 1
        nested = pytest.raises(poptorch.Error, match=r"Nested poptorch\.MultiConv is not supported")
        with nested, MultiConv(), MultiConv():
            F.conv1d(X, WEIGHT)
        miscounted = pytest.raises(poptorch.Error, match=r"Proportions has 2 entries.* 1 convolutions")
        with miscounted, MultiConv().availableMemoryProportions([0.1, 0.2]):
            F.conv1d(X, WEIGHT)
        with MultiConv():  # the failures above left nothing open
            F.conv1d(X, WEIGHT)


def test_an_error_inside_is_not_hidden() -> None:
    with ambient.capturing(ambient.CaptureContext()), pytest.raises(ZeroDivisionError), MultiConv():
        raise ZeroDivisionError


def test_outside_of_a_model_nothing_happens() -> None:
    with MultiConv(), MultiConv():
        pass


@pytest.mark.parametrize(
    ("setter", "value", "error", "phrase"),
    [
        ("availableMemoryProportions", 1, AssertionError, "Invalid available memory proportion!"),
        ("availableMemoryProportions", [], AssertionError, "Invalid available memory proportion!"),
        ("availableMemoryProportions", [0.5, "x"], AssertionError, "Invalid available memory proportion!"),
        ("partialsTypes", "half", ValueError, "Invalid partials types"),
        ("partialsTypes", torch.int32, ValueError, "Invalid partials types"),
        ("partialsTypes", [torch.half, 1], ValueError, "Invalid partials types"),
        ("planType", "parallel", AssertionError, "Invalid plan type"),
        ("perConvReservedTiles", 1.5, AssertionError, "expecting int"),
        ("perConvReservedTiles", True, AssertionError, "expecting int"),
        ("cycleBackOff", 1, AssertionError, "expecting float"),
        ("cycleBackOff", 1.5, AssertionError, "between 0 and 1"),
        ("enableConvDithering", 1, ValueError, "value must be bool or list of bools"),
        ("enableConvDithering", [True, 1], ValueError, "value must be bool or list of bools"),
    ],
)
def test_invalid_settings(setter: str, value: object, error: type[Exception], phrase: str) -> None:
    with pytest.raises(error, match=phrase):
        getattr(MultiConv(), setter)(value)


def test_none_resets() -> None:
    plan = MultiConv().availableMemoryProportions(0.1).planType(MultiConvPlanType.Serial).enableConvDithering(True)
    plan.availableMemoryProportions(None).planType(None).enableConvDithering(None)
    assert plan._options() == "{}"


def test_plan_types() -> None:
    assert (MultiConvPlanType.Parallel.value, MultiConvPlanType.Serial.value) == (0, 1)


# ---- data independence -------------------------------------------------------------------------------------------


class Chained(nn.Module):
    """Two convolutions in one scope, the second one fed by ``between`` of the first one's result."""

    def __init__(self, between: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 2, 3, padding=1), nn.Conv1d(2, 2, 3, padding=1)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with MultiConv():
            y = self.first(x)
            z = self.second(self.between(x.clone(), y))
        return y + z


def written_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x


def written_into_a_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[:, :1] = y[:, 1:]
    return x


def written_through_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[:, 0].copy_(y[:, 1])
    return x


DEPENDENT = {
    "directly": lambda x, y: y,
    "through operations": lambda x, y: x + torch.relu(y * 2).mean(),
    "through a list": lambda x, y: torch.cat([x, y])[:1] + torch.stack([x, y]).sum(0),
    "in place": written_in_place,
    "in a part": written_into_a_part,
    "through a view": written_through_a_view,
}


@pytest.mark.parametrize("way", DEPENDENT)
def test_dependent_convolutions_are_refused_with_both_lines(way: str) -> None:
    model = poptorch.inferenceModel(Chained(DEPENDENT[way]))
    lines = r"test_multi_conv\.py:(\d+)"
    with pytest.raises(poptorch.Error, match=f"the convolution at .*{lines} needs .* at .*{lines}, .*independent") as e:
        model(X)
    later, earlier = map(int, re.findall(lines, str(e.value)))
    assert later == earlier + 1


def test_other_results_may_be_used_in_the_scope() -> None:
    model = Chained(lambda x, y: torch.relu(x) * 2)
    with torch.no_grad():
        expected = model(X)
    assert_close_sums(poptorch.inferenceModel(model)(X), expected, terms=2 * 3, steps=2)


def test_a_scope_may_use_what_an_earlier_scope_computed() -> None:
    class TwoScopes(Chained):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            plan = MultiConv()
            with plan:
                y, z = self.first(x), self.second(x)
            with plan:
                return self.first(y + z) + self.second(y * z)

    model = TwoScopes(torch.add)
    with torch.no_grad():
        expected = model(X)
    assert_close_sums(poptorch.inferenceModel(model)(X), expected, terms=2 * 3, steps=2)
