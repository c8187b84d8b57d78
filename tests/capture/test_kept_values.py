"""Hooks that keep what they see of a capture."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import poptorch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.second(torch.relu(self.first(x)))
        return y, poptorch.identity_loss(y, "mean")


def _call(net: nn.Module, training: bool) -> None:
    executor = poptorch.trainingModel(net) if training else poptorch.inferenceModel(net)
    executor(torch.ones(2, 2))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("form", [lambda t: t, torch.Tensor.detach, lambda t: (t * 2).sum()])
def test_a_hook_that_collects_outputs_is_named(training: bool, form: Any) -> None:
    net, seen = Net(), []
    net.first.register_forward_hook(lambda module, inputs, output: seen.append(form(output)))
    with pytest.warns(UserWarning, match=r"keeps tensors that forward\(\) computes \(at .*\.py:\d+\).*anchorTensor"):
        _call(net, training)


@pytest.mark.parametrize("training", [False, True])
def test_a_hook_that_replaces_is_fine(training: bool) -> None:
    net = Net()
    net.second.register_forward_hook(lambda module, inputs, output: output * 2)
    net.second.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _call(net, training)


@pytest.mark.parametrize("training", [False, True])
def test_a_hook_that_only_looks_is_told_that_it_runs_once(training: bool) -> None:
    net, shapes = Net(), []
    net.first.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    hooks = dict(net.first._forward_hooks)
    with pytest.warns(UserWarning, match=r"hook .*<lambda> of 'first' runs once") as told:
        _call(net, training)
    assert {warning.filename for warning in told} == {__file__}
    assert shapes == [(2, 3)]
    assert dict(net.first._forward_hooks) == hooks
