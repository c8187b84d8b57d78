"""A library that derives its own executor, and runs another module than the one it shows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch._args_parser import ArgsParser
from poptorch._poplar_executor import PoplarExecutor


class Regression(nn.Module):
    """The user's model: named arguments in, a dictionary out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        y = self.layer(x)
        return {"output": y, "loss": nn.functional.mse_loss(y, target)}


class Flat(nn.Module):
    """The library's module around it: one tuple in, a tuple out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(self.inner(*inputs).values())


class FlatParser(ArgsParser):
    def __init__(self, names: list[str]) -> None:
        self._has_variadic_arguments = True
        self._varnames = names
        self._defaults = [None for _ in names]
        self._warned_not_contiguous_input = False


class LibraryExecutor(PoplarExecutor):
    """Makes its own module to run, before and after the constructor of the base."""

    def __init__(self, model: nn.Module, title: str = "", training: bool = True, *args: Any, **kwargs: Any) -> None:
        self.title = title
        self._model = Flat(model)
        super().__init__(self._model, *args, training=training, **kwargs)
        self._args_parser: Any = None

    @property
    def training(self) -> bool:
        return self._training

    def step(self, **named: torch.Tensor) -> dict[str, torch.Tensor]:
        if self._args_parser is None:
            self._args_parser = FlatParser(["args"])
        output, loss = self(tuple(named.values()))
        return {"output": output, "loss": loss}

    def detachFromDevice(self) -> None:
        if self.isCompiled() and self._is_attached:
            super().detachFromDevice()

    def attachToDevice(self) -> None:
        if self.isCompiled() and not self._is_attached:
            super().attachToDevice()


def training_executor(model: nn.Module, **kwargs: Any) -> LibraryExecutor:
    return LibraryExecutor(
        model=copy.copy(model), title="t", options=poptorch.Options(), training=True, user_model=model,
        poptorch_version=poptorch.__version__, **kwargs,
    )  # fmt: skip


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(4, 3, generator=generator), "target": torch.randn(4, 2, generator=generator)}


@pytest.fixture
def model() -> Regression:
    torch.manual_seed(0)
    return Regression()


def test_it_trains_like_the_wrapping_function(model: Regression, batch: dict[str, torch.Tensor]) -> None:
    twin = copy.deepcopy(model)
    executor = training_executor(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    usual = poptorch.trainingModel(twin, optimizer=poptorch.optim.SGD(twin.parameters(), lr=0.1))
    losses = [executor.step(**batch)["loss"].item() for _ in range(3)]
    assert losses == [usual(**batch)["loss"].item() for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]
    assert executor.model is model
    assert executor.training is True
    assert executor.layer is model.layer, "attributes are those of the user's model"
    assert torch.equal(model.layer.weight.detach(), twin.layer.weight.detach())
    assert model.calls.item() == 3
    executor.detachFromDevice()
    executor.detachFromDevice()
    assert not executor.isAttachedToDevice()
    executor.attachToDevice()
    executor.attachToDevice()
    assert executor.step(**batch)["loss"].item() < losses[2]
    executor.destroy()
    assert type(model) is Regression
    assert set(model.state_dict()) == {"layer.weight", "layer.bias", "calls"}


def test_its_inference_follows_its_training(model: Regression, batch: dict[str, torch.Tensor]) -> None:
    training = training_executor(model)
    inference = LibraryExecutor(
        copy.copy(model), training=False, options=poptorch.Options(), poptorch_version=poptorch.__version__
    )
    assert inference.training is False
    before = inference.step(**batch)["loss"].item()
    training.step(**batch)
    training.copyWeightsToHost()
    inference.copyWeightsToDevice()
    assert inference.step(**batch)["loss"].item() < before
    training.destroy()


def test_the_default_optimizer_and_loading(model: Regression, batch: dict[str, torch.Tensor]) -> None:
    executor = training_executor(model)
    executor.step(**batch)
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    executor.load_state_dict(state)
    loss = executor.step(**batch)["loss"]
    assert torch.equal(loss, nn.functional.mse_loss(torch.zeros(4, 2), batch["target"]))
    executor.destroy()


def test_what_is_refused(model: Regression) -> None:
    with pytest.raises(TypeError, match=r"Expected a torch\.nn\.Module"):
        PoplarExecutor(model, None, True, poptorch.__version__, None, user_model="model")  # type: ignore[arg-type]
    with pytest.raises(poptorch.Error, match=r"not 1\.0"):
        PoplarExecutor(model, None, True, "1.0")
    executor = training_executor(model)
    with pytest.raises(RuntimeError, match="has already been wrapped"):
        training_executor(model)
    executor.destroy()
