"""The original's private modules, as libraries use them."""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch import hooks
from poptorch._args_parser import ArgsParser
from poptorch._poplar_executor import _OverwriteContextManager

X = torch.tensor([1.0, 2.0])


# --- replacing functions during capture ------------------------------------------------------------------------


def loaded_again() -> Any:
    """The module as a graph library looks for it."""
    spec = importlib.util.find_spec("poptorch._poplar_executor")
    assert spec is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return spec.loader.load_module()  # type: ignore[union-attr]


LOG: list[str] = []


class First:
    name = "first"

    def __init__(self) -> None:
        LOG.append(f"{self.name} made")

    def replace(self) -> None:
        LOG.append(f"{self.name} replaces")

    def restore(self) -> None:
        LOG.append(f"{self.name} restores")


class Second(First):
    name = "second"


class Doubled:
    """Puts another function in the place of ``torch.sin``."""

    def replace(self) -> None:
        self._original = torch.sin
        torch.sin = lambda x: x * 2  # type: ignore[assignment]

    def restore(self) -> None:
        torch.sin = self._original


@pytest.fixture
def managers() -> Iterator[Any]:
    """Registers classes, and removes them at the end."""
    registered: list[Any] = []
    LOG.clear()

    def register(*kinds: Any, module: Any = poptorch._poplar_executor) -> None:
        for kind in kinds:
            module._OverwriteContextManager.registerSubsitutionManager(kind)
            registered.append(kind)

    yield register
    for kind in dict.fromkeys(registered):
        hooks.remove_substitution(kind)


USE = ["first made", "first replaces", "second made", "second replaces", "second restores", "first restores"]

ONE_CAPTURE = [*USE[:4], "forward", *USE[4:]]


class Sine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        LOG.append("forward")
        return torch.sin(x)


def test_every_capture_replaces_and_restores_in_reverse(managers: Any) -> None:
    managers(First, Second)
    model = poptorch.inferenceModel(Sine())
    assert LOG == [], "nothing happens before the capture"
    model(X)
    model(X)
    assert [*LOG] == ONE_CAPTURE
    poptorch.inferenceModel(Sine())(X)
    assert [*LOG] == ONE_CAPTURE * 2


def test_no_duplicates_and_one_registry(managers: Any) -> None:
    module = loaded_again()
    managers(First, module=module)
    managers(Second, First)
    managers(First, module=loaded_again())
    assert module.PoplarExecutor is poptorch.PoplarExecutor
    poptorch.inferenceModel(nn.ReLU())(X)
    assert LOG == USE


def test_replacements_are_captured_and_then_gone(managers: Any) -> None:
    managers(Doubled)
    model = poptorch.inferenceModel(Sine())
    assert model(X).tolist() == [2.0, 4.0]
    assert torch.equal(Sine()(X), X.sin())


def test_an_error_in_forward_restores(managers: Any) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    managers(First, Doubled, Second)
    with pytest.raises(ValueError, match="no"):
        poptorch.inferenceModel(Fails())(X)
    assert LOG == USE
    assert torch.equal(torch.sin(X), X.sin())


def test_an_error_while_replacing_restores_what_was_replaced(managers: Any) -> None:
    class Fails(First):
        name = "third"

        def replace(self) -> None:
            raise ValueError("cannot replace")

    managers(First, Fails, Second)
    with pytest.raises(ValueError, match="cannot replace"):
        poptorch.inferenceModel(nn.ReLU())(X)
    assert LOG == ["first made", "first replaces", "third made", "first restores"]


def test_it_is_a_class_method() -> None:
    assert inspect.ismethod(_OverwriteContextManager.registerSubsitutionManager)


# --- _impl and _utils ------------------------------------------------------------------------------------------


def test_capturing_is_told_apart_from_running() -> None:
    seen: list[bool] = []

    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(poptorch._impl.isDispatchTracing())
            return x + 1

    model = Asks()
    model(X)
    poptorch.inferenceModel(model)(X)
    model(X)
    assert seen == [False, True, False]
    assert poptorch._impl.isDispatchTracing() is False


def test_a_model_is_unwrapped_for_a_while() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return poptorch.identity_loss(self.layer(x), "mean")

    model = WithLoss()
    before = model.layer.weight.detach().clone()
    training = poptorch.trainingModel(model)
    training(X)
    poptorch._impl.unwrapModelIfNecessary(model)
    assert type(model) is WithLoss
    assert type(model.layer.weight) is nn.Parameter
    assert type(model.calls) is torch.Tensor
    assert not torch.equal(model.layer.weight, before), "the trained weights"
    assert model.calls.item() == 1
    between = model.layer.weight.detach().clone()
    poptorch._impl.rewrapModelIfNecessary(model)
    assert type(model) is not WithLoss
    training(X)
    assert not torch.equal(model.layer.weight.detach(), between)
    training.destroy()
    for function in (poptorch._impl.unwrapModelIfNecessary, poptorch._impl.rewrapModelIfNecessary):
        function(model)  # "if necessary": nothing to do
    assert type(model) is WithLoss


def test_joining_batches_position_by_position() -> None:
    batches = [[torch.full((n, 2), n), torch.arange(n)] for n in (1, 2)]
    joined = poptorch._utils.combine_batch_tensors_gen(batches)
    assert [tensor.tolist() for tensor in joined] == [[[1, 1], [2, 2], [2, 2]], [0, 0, 1]]
    assert list(poptorch._utils.combine_batch_tensors_gen([])) == []
    with pytest.raises(ValueError, match="shorter"):
        list(poptorch._utils.combine_batch_tensors_gen([[X, X], [X]]))


# --- ArgsParser ------------------------------------------------------------------------------------------------


class Takes(nn.Module):
    def forward(self, x: Any, y: Any, z: Any = 3) -> Any:
        return x


class TakesAny(nn.Module):
    def forward(self, x: Any, *rest: Any, scale: Any = 1, **more: Any) -> Any:
        return x


def test_arguments_in_the_order_of_the_parameters() -> None:
    parser = ArgsParser(Takes())
    assert parser((1,), {"y": 2}) == (1, 2, 3)
    assert parser((), {"z": 5, "y": 2, "x": 1}) == (1, 2, 5)
    assert parser((1, 2, 4), {}) == (1, 2, 4)
    assert ArgsParser(TakesAny(), tracing=True)((1,), {"other": 7}) == (1, 1, 7)


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "text"),
    [
        ((1, 2, 3, 4), {}, AssertionError, "Too many arguments provided"),
        ((1, 2), {"u": 1}, AssertionError, "is not a valid parameter"),
        ((1, 2), {"x": 1}, AssertionError, "x was passed more than once"),
        ((1,), {}, poptorch.Error, "Mandatory parameter y missing"),
    ],
)
def test_arguments_that_do_not_fit(args: Any, kwargs: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        ArgsParser(Takes())(args, kwargs)


class DictArgsParser(ArgsParser):
    """As libraries derive from it: without calling the constructor."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self._has_variadic_arguments = True
        self._varnames = list(inputs.keys())
        self._defaults = [inspect.Parameter.empty for _ in self._varnames]
        self._warned_not_contiguous_input = False


def test_a_subclass_may_set_the_attributes_itself() -> None:
    assert DictArgsParser({"args": ()})(((X, X),), {}) == ((X, X),)
