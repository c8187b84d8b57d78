"""Updating weights in the middle of back-propagation: same results, fewer gradients alive."""

from __future__ import annotations

import copy
import gc
import re

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from host_code import change_code
from poptorch.host.interpret.update_in_backward import join_update


class Regression(nn.Module):
    """A network and its loss."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(x), target)


def layers(width: int = 8, count: int = 3) -> Regression:
    torch.manual_seed(0)
    return Regression(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(count)])


def data(width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(4, width), torch.randn(4, width)


def compiled(model, optimizer, *inputs):
    executor = poptorch.trainingModel(model, options(), optimizer)
    executor.compile(*inputs)
    return executor


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def joined(executor, bucket_bytes):
    executable = executor.executable
    names = [name for group in executable.update.parameters for name in group]
    return join_update(executable.program, executable.update.graph_module.graph, names, bucket_bytes)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_weight_is_updated_once_behind_its_last_use(name):
    model = layers()
    executor = compiled(model, OPTIMIZERS[name](model.parameters()), *data())
    step = joined(executor, bucket_bytes=1)
    assert step is not None
    assert len(step.buckets) > 1
    assert sorted(n for bucket in step.buckets for n in bucket) == sorted(n for n, _ in model.named_parameters())
    assert step.buckets[0] == ["net.2.0.weight"]  # the last layer's gradients come first
    step.graph_module.graph.lint()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_small_buckets_change_no_number(name, monkeypatch):
    whole, parts = layers(), layers()
    first = compiled(whole, OPTIMIZERS[name](whole.parameters()), *data())
    change_code(first, step=None)  # micro-batch, then update
    monkeypatch.setattr(join_update, "__defaults__", (1,))
    second = compiled(parts, OPTIMIZERS[name](parts.parameters()), *data())
    assert second.executable.code.step is not None
    for _ in range(4):
        assert_close_sums(second(*data()), first(*data()), terms=64, steps=4)
    assert_close_sums(list(parts.parameters()), list(whole.parameters()), terms=64, steps=4)


def test_matches_eager_with_several_groups_and_a_changing_rate():
    model = layers()
    reference = copy.deepcopy(model)

    def optimizer(module):
        groups = [{"params": module.net[0].parameters(), "lr": 0.05}, {"params": module.net[1:].parameters()}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    ours, theirs = optimizer(model), optimizer(reference)
    executor = compiled(model, ours, *data())
    assert executor.executable.code.step is not None
    for rate in (0.1, 0.02, 0.3):
        for chosen in (ours, theirs):
            for group in chosen.param_groups:
                group["lr"] = rate
        executor.setOptimizer(ours)
        theirs.zero_grad()
        loss = reference(*data())
        loss.backward()
        theirs.step()
        assert_close_sums(executor(*data()), loss, terms=64, steps=3)
    assert_close_sums(list(model.parameters()), list(reference.parameters()), terms=64, steps=3)


def test_clipping_waits_for_all_gradients():
    model = layers()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, max_grad_norm=0.5)
    executor = compiled(model, optimizer, *data())
    assert executor.executable.code.step is None


class TiedAndRead(nn.Module):
    """One weight used twice, and read once more for a buffer at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8, 8))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.seen.copy_(self.inner.weight.detach())
        return nn.functional.mse_loss(self.inner(torch.tanh(self.inner(x))), target)


def test_a_weight_is_not_written_before_its_last_reader(monkeypatch):
    monkeypatch.setattr(join_update, "__defaults__", (1,))
    torch.manual_seed(0)
    model = TiedAndRead()
    before = model.inner.weight.detach().clone()
    executor = compiled(model, torch.optim.SGD(model.parameters(), lr=0.1), *data())
    executor(*data())
    assert torch.equal(model.seen, before)
    assert not torch.equal(model.inner.weight, before)


def test_gradients_die_one_by_one(monkeypatch):
    """Counts the tensors of a gradient's size that live when each update begins."""
    monkeypatch.setattr(join_update, "__defaults__", (1,))
    width, count = 37, 6
    model = layers(width, count)
    executor = compiled(model, torch.optim.SGD(model.parameters(), lr=0.1), *data(width))
    step = executor.executable.code.step
    weights = _matrices(width)
    most = 0
    called = [name for name in step.run.__globals__ if name.startswith("op__foreach_")]
    assert called

    def counting(original):
        def run(*args, **kwargs):
            nonlocal most
            most = max(most, len(_matrices(width)) - len(weights))
            return original(*args, **kwargs)

        return run

    for name in called:
        step.run.__globals__[name] = counting(step.run.__globals__[name])
    executor(*data(width))
    assert 1 <= most <= 2  # never all six


def _matrices(width):
    tensors = [t for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter)]
    return {t.data_ptr() for t in tensors if t.shape == (width, width) and t.device.type == "cpu"}


def test_anchored_gradients_survive():
    model = layers()
    chosen = options()
    chosen.anchorTensor("grad", "Gradient___net.0.0.weight")
    executor = poptorch.trainingModel(model, chosen, torch.optim.SGD(model.parameters(), lr=0.1))
    reference = copy.deepcopy(layers())
    reference(*data()).backward()
    executor(*data())
    assert_close_sums(executor.getAnchoredTensor("grad"), reference.net[0][0].weight.grad, terms=32)


def test_source_is_readable():
    model = layers()
    executor = compiled(model, torch.optim.SGD(model.parameters(), lr=0.1), *data())
    source = executor.executable.code.step.source
    assert source.startswith("def step(parameters, buffers, constants, inputs, loss_scale, random, state):")
    assert re.search(r"op__foreach_add\w*\(", source)
