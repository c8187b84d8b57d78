"""Hooks on accumulated gradients are part of the program, or refused with what to do; layers of no elements, too."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return poptorch.identity_loss(self.fc(x).pow(2).mean(), "none")


def train(hook, options=None, **optimizer):
    torch.manual_seed(0)
    model = Model()
    reference = copy.deepcopy(model).double()
    for one in (model, reference):
        one.fc.weight.register_post_accumulate_grad_hook(hook)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, **optimizer)
    executor = poptorch.trainingModel(model, options, optimizer)
    torch_optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.randn(4, 2)
        executor(x)
        torch_optimizer.zero_grad()
        reference(x.double()).backward()
        torch_optimizer.step()
    torch.testing.assert_close(model.fc.weight.double(), reference.fc.weight, rtol=1e-5, atol=1e-6)


def double(parameter):
    parameter.grad.mul_(2)


def clip(parameter):
    nn.utils.clip_grad_norm_([parameter], 0.01)


@pytest.mark.parametrize("hook", [double, clip])
def test_a_hook_sees_the_gradient_of_the_update(hook):
    train(hook)


def accumulating():
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    return options


@pytest.mark.parametrize("options", [accumulating(), poptorch.Options().replicationFactor(2)])
def test_a_hook_that_would_see_parts_of_it_is_refused(options):
    with pytest.raises(
        poptorch.Error, match=r"Parameter fc\.weight has a hook .* takes 2 micro-batches .*register_hook"
    ):
        train(double, options)


def test_a_hook_that_would_see_it_scaled_is_refused():
    with pytest.raises(poptorch.Error, match=r"Parameter fc\.weight has a hook .*Loss scaling"):
        train(double, loss_scaling=8.0)


def test_a_hook_that_steps_an_optimizer_is_refused():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.fc.weight.register_post_accumulate_grad_hook(lambda parameter: optimizer.step())
    executor = poptorch.trainingModel(model)
    with pytest.raises(poptorch.Error, match=r"parameter fc\.weight .*calls the step of an optimizer"):
        executor(torch.ones(1, 2))
    optimizer.step()  # elsewhere it goes on


def test_a_hook_that_looks_for_its_parameter_is_explained():
    model = Model()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    model.fc.weight.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    executor = poptorch.trainingModel(model)
    with pytest.raises(
        poptorch.Error, match=r"hook .*fc\.weight.* failed .*KeyError.*pass that to poptorch\.trainingMo"
    ):
        executor(torch.ones(1, 2))


def test_a_hook_that_returns_something_is_explained():
    with pytest.raises(poptorch.Error, match=r"fc\.weight .* returned a Tensor but has to return None"):
        train(lambda parameter: parameter.grad.mul_(2))


class Tails(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10, 15], div_value=16.0)

    def forward(self, x):
        return self.head.log_prob(x)


def test_a_layer_of_no_elements_is_named():
    shown = (
        r"Zero-sized tensors are unsupported \(Got shape \[0, 8\]\).*head\.tail\.0\.0\.weight.*belongs to Linear"
        r".*part of head, of the class AdaptiveLogSoftmaxWithLoss.*smaller div_value"
    )
    with pytest.raises(poptorch.Error, match=shown):
        poptorch.inferenceModel(Tails())(torch.ones(2, 8))
