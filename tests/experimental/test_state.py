"""Captured functions with state: ``model=``, and whole training steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums
from poptorch.experimental import IPUContext

CALLS = 20
Step = Callable[[torch.Tensor, torch.Tensor], Any]


def batches(count: int = CALLS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(5, 4, generator=generator), torch.randn(5, 2, generator=generator)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


# -- the state of a module ---------------------------------------------------------------------------------------------


def test_the_named_module_is_untouched() -> None:
    model = small_model()
    model[0].weight.grad = torch.ones(8, 4)
    before = [(p, type(p), p.grad, p.detach().clone()) for p in model.parameters()]

    def function(x: torch.Tensor) -> Any:
        model(x).sum().backward()
        with torch.no_grad():
            model[0].weight.mul_(2)
        return model[0].weight.grad, model[0].weight

    gradient, weight = IPUContext(function, model=model)(torch.ones(1, 4))
    assert gradient.shape == (8, 4)
    assert torch.equal(weight, before[0][3] * 2)
    for parameter, (same, kind, grad, value) in zip(model.parameters(), before, strict=True):
        assert parameter is same
        assert type(parameter) is kind
        assert parameter.grad is grad
        assert torch.equal(parameter, value)


def test_buffers_live_on_the_device() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    counter = Counter()
    on_ipu = IPUContext(counter, model=counter)
    assert [on_ipu(torch.zeros(1)).item() for _ in range(3)] == [1, 2, 3]
    assert counter.count.item() == 0


def test_modules_that_are_not_named_are_constants() -> None:
    layer = nn.Linear(3, 2)
    before = layer.weight.detach().clone()

    def function(x: torch.Tensor) -> Any:
        out = layer(x)
        out.sum().backward()
        return out, layer.weight.grad

    on_ipu = IPUContext(function)
    expected = layer(torch.ones(1, 3)).detach()
    out, gradient = on_ipu(torch.ones(1, 3))
    assert_close_sums(out, expected, terms=3)
    assert torch.equal(gradient, torch.ones(2, 3))
    assert layer.weight.grad is None
    with torch.no_grad():
        layer.weight.add_(1)
    assert_close_sums(on_ipu(torch.ones(1, 3))[0], expected, terms=3)
    assert torch.equal(layer.weight, before + 1)


# -- training ----------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "dampening": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.5, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}


def step_of(model: nn.Module, make: Callable[[Any], torch.optim.Optimizer], early: bool) -> Step:
    optimizer = make(model.parameters()) if early else None

    def step(x: torch.Tensor, target: torch.Tensor) -> Any:
        nonlocal optimizer
        if optimizer is None:
            optimizer = make(model.parameters())
        optimizer.zero_grad()
        out = model(x)
        out.retain_grad()
        loss = F.mse_loss(out, target)
        loss.backward()
        optimizer.step()
        return loss, out.grad, model[0].weight.grad, list(model.parameters())

    return step


@pytest.mark.parametrize("early", [False, True], ids=["made inside", "made before"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_steps_equal_eager(name: str, early: bool) -> None:
    eager = small_model()
    model = copy.deepcopy(eager)
    step = IPUContext(step_of(model, OPTIMIZERS[name], early), model=model)
    reference = step_of(eager, OPTIMIZERS[name], early)
    for number, batch in enumerate(batches(), 1):
        given, expected = step(*batch), reference(*batch)
        assert_close_sums(given, _detached(expected), terms=8, steps=number)
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())
    assert not torch.equal(model[0].weight, eager[0].weight)


def _detached(structure: Any) -> Any:
    loss, out_grad, weight_grad, parameters = structure
    return loss.detach(), out_grad, weight_grad, [p.detach() for p in parameters]


def test_optimizers_with_a_past_go_on() -> None:
    eager = small_model()
    model = copy.deepcopy(eager)
    makes = [OPTIMIZERS["adam"](m.parameters()) for m in (eager, model)]
    reference, function = (step_of(m, lambda p, o=o: o, early=True) for m, o in zip((eager, model), makes, strict=True))
    for batch in batches(2):
        reference(*batch)
        function(*batch)
    state = copy.deepcopy(makes[1].state_dict())
    step = IPUContext(function, model=model)
    for number, batch in enumerate(batches(5), 1):
        assert_close_sums(step(*batch)[3], _detached(reference(*batch))[3], terms=8, steps=number)
    assert makes[1].param_groups[0]["params"][0] is model[0].weight
    torch.testing.assert_close(makes[1].state_dict(), state, rtol=0, atol=0)


def test_an_optimizer_for_each_call_has_no_past() -> None:
    eager = small_model()
    model = copy.deepcopy(eager)

    def step_with(model: nn.Module) -> Step:
        def step(x: torch.Tensor, target: torch.Tensor) -> Any:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            loss = F.mse_loss(model(x), target)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            return [p.detach() for p in model.parameters()]

        return step

    step, reference = IPUContext(step_with(model), model=model), step_with(eager)
    for number, batch in enumerate(batches(4), 1):
        assert_close_sums(step(*batch), reference(*batch), terms=8, steps=number)


def test_own_optimizers_in_python() -> None:
    class Rebinding(torch.optim.Optimizer):
        """Puts new tensors into its state instead of writing to the old ones."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                mean = self.state[parameter].get("mean", torch.zeros_like(parameter))
                self.state[parameter]["mean"] = 0.5 * mean + parameter.grad
                parameter -= 0.1 * self.state[parameter]["mean"]

    eager = small_model()
    model = copy.deepcopy(eager)
    step, reference = IPUContext(step_of(model, Rebinding, False), model=model), step_of(eager, Rebinding, False)
    for number, batch in enumerate(batches(5), 1):
        assert_close_sums(step(*batch), _detached(reference(*batch)), terms=8, steps=number)


def test_new_state_needs_one_step_in_a_call() -> None:
    model = small_model()
    step = IPUContext(
        step_of(model, OPTIMIZERS["adam"], False), model=model, options=poptorch.Options().deviceIterations(5)
    )
    with pytest.raises(poptorch.Error, match="makes its state in its first step"):
        step(*next(batches()))


def test_several_steps_in_a_call() -> None:
    eager = small_model()
    model = copy.deepcopy(eager)
    options = poptorch.Options().deviceIterations(5)
    step = IPUContext(step_of(model, OPTIMIZERS["sgd"], False), model=model, options=options)
    reference = step_of(eager, OPTIMIZERS["sgd"], False)
    x, target = next(batches())
    losses = step(x, target)[0]
    expected = [reference(x[i : i + 1], target[i : i + 1])[0].detach() for i in range(5)]
    assert_close_sums(losses, torch.stack(expected), terms=8, steps=5)


def test_training_over_two_ipus() -> None:
    eager = small_model()
    model = copy.deepcopy(eager)

    def step_with(model: nn.Module) -> Callable[[torch.Tensor], Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            with poptorch.Block("first", ipu_id=0):
                hidden = model[0](x)
            with poptorch.Block("second", ipu_id=1):
                loss = model[2](model[1](hidden)).square().mean()
                loss.backward()
                optimizer.step()
                return loss.detach(), model[0].weight.detach(), model[2].bias.detach()

        return step

    options = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution("first", "second"))
    step, reference = IPUContext(step_with(model), model=model, options=options), step_with(eager)
    for number, (x, _) in enumerate(batches(4), 1):
        assert_close_sums(step(x), reference(x), terms=8, steps=number)
