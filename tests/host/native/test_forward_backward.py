"""A training program cut into forward and backward pass."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import poptorch
from poptorch.host import levels
from poptorch.host.native.draft import fakes_of
from poptorch.host.native.forward_backward import find_seed, split
from poptorch.host.native.inductor import fake_mode
from poptorch.host.native.random_keys import with_keys

aten = torch.ops.aten


class Attention(nn.Module):
    """Causal attention of one projection, which the backward pass needs as well."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return poptorch.identity_loss((y * y).mean(), reduction="none")


class Calls(TorchDispatchMode):
    """Counts the operations that the kernels are surrounded by."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Any] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_attention_runs_once_in_each_direction(monkeypatch, accumulation):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    monkeypatch.setattr(levels, "PYTHON_SHOWS_SECONDS", 0.0)  # Python between the kernels: it can be watched
    model = Attention()
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(2 * accumulation, 4, 8)
    executor(x)
    with Calls() as calls:
        executor(x)
    assert calls.counts[aten._scaled_dot_product_flash_attention_for_cpu.default] == accumulation
    assert calls.counts[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] == accumulation


class Activated(nn.Module):
    """A wide activation between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, x):
        return poptorch.identity_loss(self.layers(x).square().mean(), reduction="none")


def test_the_derivative_of_gelu_is_kept_in_place_of_its_operand():
    model = Activated()
    executor = poptorch.trainingModel(model, poptorch.Options(), torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(torch.randn(16, 4))
    program = executor.program
    with fake_mode():
        graph_module = with_keys(program.graph_module)
        seed = find_seed(program, graph_module)
        assert seed is not None
        sweeps = split(program, graph_module, seed, fakes_of(program))
    assert sweeps.forward.graph.find_nodes(op="call_function", target=aten.erf.default)
    assert not sweeps.backward.graph.find_nodes(op="call_function", target=aten.erf.default)
    wide = [n for n in sweeps.backward.graph.find_nodes(op="placeholder") if n.meta["val"].numel() == 16 * 32]
    assert len(wide) == 2  # the derivative, and what the second layer multiplies


class Returning(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.function = function

    def forward(self, x, target):
        y = self.layer(x).relu()
        return self.function(y), nn.functional.mse_loss(y, target)


@pytest.mark.parametrize("function", [lambda y: y.argmax(-1), lambda y: y.view(-1)], ids=["argmax", "view"])
@pytest.mark.parametrize("recomputation", [1, 4])
def test_results_that_come_after_the_backward_pass_are_forward_all_the_same(monkeypatch, function, recomputation):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    model = Returning(function)
    options = poptorch.Options()
    options._Popart.set("autoRecomputation", recomputation)
    x, target = torch.randn(8, 4), torch.randn(8, 3)
    expected = function(model.layer(x).relu()).detach()
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    torch.testing.assert_close(executor(x, target)[0], expected, check_dtype=False)


class Silent(nn.Module):
    """Its forward pass computes nothing that anyone needs: back-propagation starts from the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        poptorch.identity_loss((x * self.weight).sum(), reduction="none")


def test_a_training_model_that_returns_nothing(monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    model = Silent()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    assert executor(torch.ones(2, 4)) is None
    assert model.weight.tolist() == [0.0] * 4
