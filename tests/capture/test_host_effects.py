"""Plain tensors that ``forward`` changes: once, on the host, when the model is captured."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch

PHRASE = "register it as a buffer"


class Counting(nn.Module):
    """Changes the plain attribute ``i`` and returns it."""

    def __init__(self, change: Callable[[nn.Module, torch.Tensor], None]) -> None:
        super().__init__()
        self.i = torch.tensor([0.0])
        self.change = change

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.change(self, x)
        return x + self.i, self.i


def in_place(model: nn.Module, x: torch.Tensor) -> None:
    model.i += 1


def through_a_view(model: nn.Module, x: torch.Tensor) -> None:
    model.i.view(1, 1)[0].add_(1)


def with_the_input(model: nn.Module, x: torch.Tensor) -> None:
    model.i += x * 0.5


def twice(model: nn.Module, x: torch.Tensor) -> None:
    model.i += 3
    model.i.sub_(2)


def after_a_look_at_a_value(model: nn.Module, x: torch.Tensor) -> None:
    if x.sum() > 0:
        model.i += 1


def rebound(model: nn.Module, x: torch.Tensor) -> None:
    model.i = model.i + 1


@pytest.mark.parametrize("change", [in_place, through_a_view, with_the_input, twice, after_a_look_at_a_value, rebound])
def test_takes_effect_once(change: Callable[..., None]) -> None:
    model = Counting(change)
    executor = poptorch.inferenceModel(model)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(3):
            shifted, returned = executor(torch.tensor([2.0]))
            assert (shifted.item(), returned.item()) == (3, 1)
    assert executor.model.i.item() == 1
    if change is not rebound:  # the attributes of the user's own object stay as they are; their tensors are shared
        assert model.i.item() == 1
    said = [str(w.message) for w in heard if PHRASE in str(w.message)]
    assert len(said) == 1
    assert f"{__file__}:{change.__code__.co_firstlineno + (2 if change is after_a_look_at_a_value else 1)}" in said[0]


@pytest.mark.filterwarnings("ignore")
def test_training_and_integers() -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = torch.tensor(0)
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.steps += 1
            y = self.layer(x) * self.steps
            return self.steps, poptorch.identity_loss(y, "mean")

    model = Trained()
    executor = poptorch.trainingModel(model)
    assert [executor(torch.ones(1, 2))[0].item() for _ in range(3)] == [1, 1, 1]
    assert model.steps.item() == 1
    assert model.steps.dtype is torch.int64


def test_a_failed_capture_changes_nothing() -> None:
    class Failing(Counting):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            super().forward(x)
            raise ValueError("on purpose")

    model = Failing(in_place)
    with pytest.raises(ValueError, match="on purpose"):
        poptorch.inferenceModel(model)(torch.ones(1))
    assert model.i.item() == 0


def test_reading_and_caching_are_no_changes() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.seen = torch.tensor([2.0]), torch.zeros(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = x * self.scale
            local = torch.zeros(1)
            local += 1
            return self.seen + local

    model = Cache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executor = poptorch.inferenceModel(model)
        assert executor(torch.ones(1)).item() == 3
    assert executor.model.seen.item() == 0
