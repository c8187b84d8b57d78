"""What captured functions are called with: containers, objects, optimizers, and calls of another form."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

import poptorch
from closeness import assert_close_sums
from poptorch.experimental import IPUContext

MAKES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def assert_trains_as_in_eager(step_of: Callable[[nn.Module], Any], arguments: Callable[[nn.Module], tuple[Any, ...]]):
    """Five steps; ``step_of`` makes the step of a model, ``arguments`` what it gets after two tensors."""
    eager = small_model()
    model = copy.deepcopy(eager)
    step, reference = IPUContext(step_of(model), model=model), step_of(eager)
    own, others = arguments(model), arguments(eager)
    for number in range(1, 6):
        x, target = torch.randn(5, 4), torch.randn(5, 2)
        expected = [value.detach() for value in reference(x, target, *others)]
        assert_close_sums(step(x, target, *own), expected, terms=8, steps=number)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, target: torch.Tensor) -> Any:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    return [loss, *model.parameters()]


# -- optimizers among the arguments ------------------------------------------------------------------------------------


class Empty:
    optimizer: Any = None


HOLDERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "list": (list, lambda h: h[0] if h else None, lambda h, o: h.append(o)),
    "dictionary": (dict, lambda h: h.get("o"), lambda h, o: h.update(o=o)),
    "list of None": (lambda: [None], lambda h: h[0], lambda h, o: h.__setitem__(0, o)),
    "object": (Empty, lambda h: h.optimizer, lambda h, o: setattr(h, "optimizer", o)),
    "list in a tuple": (lambda: ([],), lambda h: h[0][0] if h[0] else None, lambda h, o: h[0].append(o)),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("name", MAKES)
def test_an_optimizer_that_is_made_on_first_use_and_kept_in_an_argument(name: str, holder: str) -> None:
    make_holder, get, put = HOLDERS[holder]

    def step_of(model: nn.Module) -> Any:
        def step(x: torch.Tensor, target: torch.Tensor, kept: Any) -> Any:
            if get(kept) is None:
                put(kept, MAKES[name](model.parameters()))
            return update(model, get(kept), x, target)

        return step

    assert_trains_as_in_eager(step_of, lambda model: (make_holder(),))


GIVEN: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "itself": (lambda o: o, lambda g: g),
    "in a list": (lambda o: [o], lambda g: g[0]),
    "scheduler": (lambda o: lr_scheduler.StepLR(o, 100), lambda g: g.optimizer),
}


@pytest.mark.parametrize("form", GIVEN)
@pytest.mark.parametrize("name", MAKES)
def test_an_optimizer_among_the_arguments(name: str, form: str) -> None:
    wrap, unwrap = GIVEN[form]
    assert_trains_as_in_eager(
        lambda model: lambda x, target, given: update(model, unwrap(given), x, target),
        lambda model: (wrap(MAKES[name](model.parameters())),),
    )


def test_parameters_of_the_model_among_the_arguments_are_its_state() -> None:
    def step_of(model: nn.Module) -> Any:
        def step(x: torch.Tensor, target: torch.Tensor, parameters: list[torch.Tensor]) -> Any:
            model.zero_grad()
            loss = F.mse_loss(model(x), target)
            loss.backward()
            with torch.no_grad():
                for parameter in parameters:
                    parameter -= 0.1 * parameter.grad
            return [loss, *parameters]

        return step

    assert_trains_as_in_eager(step_of, lambda model: (list(model.parameters()),))
    layer = nn.Linear(2, 1)
    read = IPUContext(lambda w: w * 2, model=layer)
    read(layer.weight)
    assert layer.weight.grad is None
    with pytest.raises(poptorch.Error, match=r"args\[0\] is another tensor than that of the model"):
        read(torch.ones(1, 2))


def test_an_optimizer_that_would_be_lost_is_refused() -> None:
    model = small_model()

    def step(x: torch.Tensor, kept: list[Any]) -> Any:
        kept.append(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        return update(model, kept[1], x, torch.ones(5, 2))

    with pytest.raises(poptorch.Error, match="keeps a SGD in an argument that also holds tensors"):
        IPUContext(step, model=model)(torch.ones(5, 4), [torch.ones(1)])


def test_a_new_learning_rate_is_said_to_be_frozen(capfd: pytest.CaptureFixture[str]) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = IPUContext(lambda x: update(model, optimizer, x, torch.ones(5, 2))[0], model=model)
    for _ in range(2):
        step(torch.ones(5, 4))
    assert "frozen" not in capfd.readouterr().err
    optimizer.param_groups[0]["lr"] = 0.25
    for _ in range(2):
        step(torch.ones(5, 4))
    assert capfd.readouterr().err.count("'lr' of SGD is 0.25, but the function was captured with 0.5") == 1


def test_random_numbers_go_on_in_the_program_that_has_the_optimizer_s_state() -> None:
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor) -> Any:
        noise = torch.rand(8)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        return noise

    on_ipu = IPUContext(step, model=model, options=poptorch.Options().randomSeed(3))
    first, second, third = (on_ipu(torch.ones(5, 4)) for _ in range(3))
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


# -- containers --------------------------------------------------------------------------------------------------------


def test_tensors_of_the_capture_do_not_stay_in_a_list() -> None:
    def function(x: torch.Tensor, notes: list[Any]) -> torch.Tensor:
        notes.append(x)
        return x + 1

    on_ipu, notes = IPUContext(function), []
    for _ in range(2):
        assert torch.equal(on_ipu(torch.ones(2), notes), torch.full((2,), 2.0))
        assert notes == []


def test_another_list_without_tensors_is_mentioned(capfd: pytest.CaptureFixture[str]) -> None:
    on_ipu = IPUContext(lambda x, dims: x.sum(dims))
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(on_ipu(x, [0]), x.sum(0))
    assert torch.equal(on_ipu(x, [0]), x.sum(0))
    assert "frozen" not in capfd.readouterr().err
    assert torch.equal(on_ipu(x, [1]), x.sum(0))
    assert "[1], but the function was captured with [0], which is frozen" in capfd.readouterr().err


# -- calls of another form ---------------------------------------------------------------------------------------------


def test_names_decide_and_not_the_order() -> None:
    on_ipu = IPUContext(lambda a, b=None, *, scale=1: (a - b) * scale)
    one, two = torch.ones(1), torch.full((1,), 2.0)
    assert on_ipu(a=two, b=one).item() == 1
    assert on_ipu(b=one, a=two).item() == 1
    assert on_ipu(two, one).item() == 1
    assert on_ipu(two, b=one, scale=1).item() == 1
    nested = IPUContext(lambda pair: pair["a"] - pair["b"])
    assert nested({"a": two, "b": one}).item() == 1
    assert nested({"b": one, "a": two}).item() == 1


def test_a_default_that_is_frozen_is_mentioned(capfd: pytest.CaptureFixture[str]) -> None:
    on_ipu = IPUContext(lambda a, scale=1: a * scale)
    on_ipu(torch.ones(1))
    assert on_ipu(torch.ones(1), scale=3).item() == 1
    assert "scale is 3, but the function was captured with 1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "phrase"),
    [
        (([torch.ones(1)],), ([torch.ones(1), torch.ones(1)],), r"args\[0\] has 2 items, and had 1 items"),
        (({"a": torch.ones(1)},), ({"b": torch.ones(1)},), r"args\[0\] has the keys \['b'\]"),
        ((torch.ones(1),), (3,), r"args\[0\] is 3, and was a tensor"),
        ((torch.ones(1), 3), (torch.ones(1), torch.ones(2)), r"args\[1\] is a tensor of shape \[2\], and was 3"),
        ((torch.ones(1), []), (torch.ones(1), [torch.ones(2)]), r"args\[1\] is a list, and was a list, without"),
        (([torch.ones(1)],), ((torch.ones(1),),), r"args\[0\] is a tuple, and was a list"),
    ],
)
def test_another_structure_is_refused(first: Any, second: Any, phrase: str) -> None:
    on_ipu = IPUContext(lambda *args: args[0] if isinstance(args[0], torch.Tensor) else next(iter(_flat(args[0]))))
    on_ipu(*first)
    with pytest.raises(poptorch.Error, match=phrase):
        on_ipu(*second)
    on_ipu(*first)


def _flat(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container


def test_one_tensor_for_two_arguments_of_which_one_is_written() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        a += b
        return a, b

    on_ipu, x = IPUContext(function), torch.ones(2)
    for _ in range(2):
        for result in on_ipu(x, x):
            assert torch.equal(result, torch.full((2,), 2.0))
        assert torch.equal(x, torch.ones(2))
