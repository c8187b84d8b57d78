"""Parameters and buffers that the user replaces, ties or freezes after the model was compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

import poptorch

X, T = torch.ones(4, 3), torch.zeros(4, 2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.other = nn.Linear(3, 2), nn.Linear(2, 2)
        self.register_buffer("shift", torch.zeros(2))

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> Any:
        y = self.other(self.fc(x)) + self.shift
        return y if target is None else (y, F.mse_loss(y, target))


def sgd(model: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    return poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, use_combined_accum=False)


def training(model: nn.Module, momentum: float = 0.0) -> Any:
    executor = poptorch.trainingModel(model, optimizer=sgd(model, momentum))
    executor(X, T)
    return executor


def new_weight(model: Model) -> None:
    model.fc.weight = nn.Parameter(torch.full((2, 3), 0.5))


def new_layer(model: Model) -> None:
    torch.manual_seed(7)
    model.fc = nn.Linear(3, 2)


def assigned_state(model: Model) -> None:
    torch.manual_seed(8)
    model.load_state_dict(Model().state_dict(), assign=True)


def new_buffer(model: Model) -> None:
    model.shift = torch.ones(2)


REPLACEMENTS = [new_weight, new_layer, assigned_state, new_buffer]


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_inference_takes_the_new_values(replace: Callable[[Model], None]) -> None:
    model = Model()
    executor = poptorch.inferenceModel(model)
    executor(X)
    replace(model)
    wanted = copy.deepcopy(model)(X).detach()
    torch.testing.assert_close(executor(X), wanted)
    torch.testing.assert_close(executor(X), wanted)


@pytest.mark.parametrize("replace", REPLACEMENTS[:3])
def test_an_optimizer_with_the_old_parameters_is_refused(replace: Callable[[Model], None]) -> None:
    model = Model()
    executor = training(model)
    replace(model)
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(2):
        with pytest.raises(poptorch.Error, match=r"Parameter fc\.weight .*replaced.*optimizer still has.*setOptimizer"):
            executor(X, T)
    if replace is not assigned_state:
        assert torch.equal(model.fc.weight, values["fc.weight"])  # not those of the device
    executor.setOptimizer(sgd(model))
    reference = copy.deepcopy(model)
    output, _ = executor(X, T)
    torch.testing.assert_close(output, reference(X).detach())
    step(reference)
    torch.testing.assert_close(dict(model.state_dict()), dict(reference.state_dict()))


def step(model: nn.Module) -> None:
    """One step of SGD in eager mode."""
    for parameter in model.parameters():
        parameter.grad = None
    model(X, T)[1].backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_what_was_trained_is_kept_for_all_others() -> None:
    model = Model()
    executor = training(model)
    reference = Model()
    step(reference)
    model.shift = torch.ones(2)
    reference.shift = torch.ones(2)
    output, _ = executor(X, T)
    torch.testing.assert_close(output, reference(X).detach())
    step(reference)
    torch.testing.assert_close(dict(model.state_dict()), dict(reference.state_dict()))
    assert torch.equal(model.shift, torch.ones(2))


def test_parameters_in_the_groups_of_the_same_optimizer() -> None:
    model = Model()
    optimizer = sgd(model)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(X, T)
    new_weight(model)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    reference = copy.deepcopy(model)
    executor(X, T)
    step(reference)
    torch.testing.assert_close(model.fc.weight.detach().clone(), reference.fc.weight.detach())


def test_new_parameters_are_watched_and_old_ones_are_not() -> None:
    model = Model()
    old = model.fc.weight
    executor = training(model)
    new_weight(model)
    executor.setOptimizer(sgd(model))
    executor(X, T)
    assert type(old) is nn.Parameter
    assert not torch.equal(model.fc.weight.detach(), torch.full((2, 3), 0.5))  # a look brings what was learned
    executor.destroy()
    assert type(model.fc.weight) is nn.Parameter


def test_state_of_the_optimizer_goes_on() -> None:
    model = Model()
    executor = training(model, momentum=0.9)
    new_weight(model)
    optimizer = sgd(model, momentum=0.9)
    executor.setOptimizer(optimizer)
    executor(X, T)
    names = optimizer.state_dict()["ipu_state"]
    assert any("fc.weight" in name for name in names)


def test_detached_models() -> None:
    model = Model()
    executor = training(model)
    executor.detachFromDevice()
    new_weight(model)
    executor.setOptimizer(sgd(model))
    reference = copy.deepcopy(model)
    output, _ = executor(X, T)
    torch.testing.assert_close(output, reference(X).detach())


def tie(model: Model) -> None:
    model.fc.bias = model.other.bias


def other_shape(model: Model) -> None:
    model.fc = nn.Linear(3, 2, bias=False)


def other_size(model: Model) -> None:
    model.shift = torch.ones(1)


def other_type(model: Model) -> None:
    model.fc.half()
    model.fc.weight = nn.Parameter(model.fc.weight.detach())


def other_class(model: Model) -> None:
    model.fc = nn.modules.linear.NonDynamicallyQuantizableLinear(3, 2)


def one_more(model: Model) -> None:
    model.extra = nn.Linear(1, 1)


def pruned(model: Model) -> None:
    prune.l1_unstructured(model.fc, "weight", amount=1)


def parametrized(model: Model) -> None:
    parametrizations.weight_norm(model.fc)


def frozen(model: Model) -> None:
    model.fc.weight.requires_grad_(False)


def frozen_by_attribute(model: Model) -> None:
    model.fc.bias.requires_grad = False


def frozen_layer(model: Model) -> None:
    model.fc.requires_grad_(False)


STRUCTURES = [tie, other_shape, other_size, other_type, other_class, one_more, pruned]
FREEZING = [frozen, frozen_by_attribute, frozen_layer]


@pytest.mark.parametrize("change", [*STRUCTURES, *FREEZING])
def test_other_structures_are_refused(change: Callable[[Model], None]) -> None:
    model = Model()
    executor = training(model)
    change(model)
    for _ in range(2):
        with pytest.raises(poptorch.Error, match=r"destroy\(\) on the executor and wrap the model again"):
            executor(X, T)
    executor.destroy()
    training(model)


@pytest.mark.parametrize("change", [*STRUCTURES, parametrized])
def test_other_structures_are_refused_for_inference(change: Callable[[Model], None]) -> None:
    model = Model()
    executor = poptorch.inferenceModel(model)
    executor(X)
    change(model)
    with pytest.raises(poptorch.Error, match=r"destroy\(\) on the executor and wrap the model again"):
        executor(X)
    with pytest.raises(poptorch.Error, match=r"destroy\(\) on the executor and wrap the model again"):
        executor.copyWeightsToDevice()


def test_unfrozen_parameters_are_refused() -> None:
    model = Model()
    model.fc.requires_grad_(False)
    executor = training(model)
    model.fc.requires_grad_(True)
    with pytest.raises(poptorch.Error, match=r"unfroze parameter fc\.weight"):
        executor(X, T)


@pytest.mark.parametrize("flip", FREEZING)
def test_freezing_for_a_while_is_no_change(flip: Callable[[Model], None]) -> None:
    model = Model()
    executor = training(model)
    flip(model)
    model.requires_grad_(True)
    executor(X, T)


def test_frozen_models_can_be_run_for_inference() -> None:
    model = Model()
    executor = poptorch.inferenceModel(model)
    executor(X)
    model.requires_grad_(False)
    executor(X)
