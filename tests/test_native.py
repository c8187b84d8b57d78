"""Native code gives the results of the interpreted program, and starts at the call that the program fixes."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.host import levels
from poptorch.host.native import building as native
from poptorch.host.native import optimizers
from poptorch.host.native.async_compile import side_by_side
from poptorch.host.store import code_store


class Net(nn.Module):
    """Buffers, random numbers, several losses' worth of operations: what native code must carry over."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(4 * 6 * 6, 3)

    def forward(self, x, target=None):
        y = self.fc(self.drop(torch.relu(self.bn(self.conv(x)))).flatten(1))
        return y if target is None else (y, nn.functional.cross_entropy(y, target))


def wrapped(monkeypatch, level, training=True):
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    torch.manual_seed(0)
    model = Net().train(training)
    options = poptorch.Options().randomSeed(3)
    if not training:
        return model, poptorch.inferenceModel(model, options)
    options.Training.gradientAccumulation(2)
    options.outputMode(poptorch.OutputMode.All)
    return model, poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def test_training_equals_the_interpreted_program(monkeypatch):
    x, target = torch.randn(8, 1, 8, 8), torch.randint(0, 3, (8,))
    results = {}
    for level in ("interpret", "native"):
        model, executor = wrapped(monkeypatch, level)
        outputs = [executor(x, target) for _ in range(3)]
        results[level] = (outputs, copy.deepcopy(dict(model.state_dict())))
    # The largest sums: 144 features of a layer, 144 places of a channel. Three layers in each of three steps.
    assert_close_sums(results["native"], results["interpret"], terms=4 * 6 * 6, steps=3 * 3)


def test_auto_changes_at_the_same_call_every_time(monkeypatch):
    x = torch.randn(2, 1, 8, 8)
    monkeypatch.setattr(levels, "SWITCH_AFTER_SECONDS", 1e-3)
    switched = []
    for _ in range(2):
        model, executor = wrapped(monkeypatch, "auto", training=False)
        expected = model(x).detach()
        executor(x)
        calls = executor.executable.code.native_after
        assert calls > 1
        for call in range(1, calls + 2):
            assert_close_sums(executor(x), expected, terms=4 * 6 * 6, steps=3)
            if executor.executable.code.native_after is None:
                switched.append(call)
                break
    assert len(switched) == 2
    assert switched[0] == switched[1] == calls


def test_a_machine_without_a_compiler_stays_interpreted(monkeypatch):
    monkeypatch.setattr(levels, "compiler_exists", lambda: False)
    _, executor = wrapped(monkeypatch, "native", training=False)
    executor(torch.randn(2, 1, 8, 8))
    assert executor.executable.code.micro_batch.source.startswith("def micro_batch")


def test_unknown_levels_are_refused(monkeypatch):
    _, executor = wrapped(monkeypatch, "interpet", training=False)
    with pytest.raises(poptorch.Error, match="POPTORCH_CODEGEN"):
        executor(torch.randn(2, 1, 8, 8))


def test_auto_leaves_adam_on_many_weights_to_torch_and_compiles_the_rest(monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "auto")
    monkeypatch.setattr(levels, "SWITCH_AFTER_SECONDS", 1e-9)
    monkeypatch.setattr(optimizers, "MANY_ELEMENTS", 10)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    reference = copy.deepcopy(model)
    x, target = torch.randn(4, 8), torch.randint(0, 2, (4,))

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x, target):
            return nn.functional.cross_entropy(self.inner(x), target)

    whole = WithLoss()
    executor = poptorch.trainingModel(whole, None, torch.optim.AdamW(whole.parameters(), lr=0.01))
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    for _ in range(4):
        executor(x, target)
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(x), target).backward()
        optimizer.step()
    executable = executor.executable
    assert executable.code.native_after is None
    assert executable.code.step is None
    assert executable.code.micro_batch.source.startswith("# native code")
    executor.copyWeightsToHost()
    assert_close_sums(list(model.parameters()), list(reference.parameters()), terms=8, steps=4)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_compiler_that_fails_leaves_the_interpreted_program(monkeypatch, caplog, stages):
    @contextlib.contextmanager
    def full_disk(report):
        with side_by_side(report):
            yield
            raise OSError("No space left on device")

    losses = {}
    for level, switch in (("interpret", 60.0), ("auto", 1e-4)):
        monkeypatch.setenv("POPTORCH_CODEGEN", level)
        monkeypatch.setattr(levels, "SWITCH_AFTER_SECONDS", switch)
        torch.manual_seed(0)
        model = Wide(48)  # a size of its own: nothing is found in a cache
        if stages == 2:
            poptorch.BeginBlock(model.fc, ipu_id=1)
        options = poptorch.Options()
        options.Training.gradientAccumulation(4 if stages == 2 else 1)
        executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
        x = torch.randn(4, 3)
        if level == "auto":
            monkeypatch.setattr(native, "side_by_side", full_disk)
        losses[level] = [executor(x) for _ in range(20)]
    assert "The program stays interpreted" in caplog.text
    assert "No space left on device" in caplog.text
    assert_close_sums(losses["auto"], losses["interpret"], terms=48, steps=20)


def test_native_code_that_cannot_be_kept_is_not_half_installed(monkeypatch, caplog):
    """Native steps want the weights of convolutions in another order: code and weights must change together."""

    def broken(code):
        raise RuntimeError("a library vanished")

    losses = {}
    for level, switch in (("interpret", 60.0), ("auto", 1e-4)):
        monkeypatch.setenv("POPTORCH_CODEGEN", level)
        monkeypatch.setattr(levels, "SWITCH_AFTER_SECONDS", switch)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(6 * 9, 5))
        loss = poptorch.trainingModel(Loss(model), optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        if level == "auto":
            monkeypatch.setattr(code_store.StoredCode, "of", broken)
        x = torch.randn(2, 3, 5, 5)
        losses[level] = [loss(x) for _ in range(20)]
    assert "a library vanished" in caplog.text
    assert_close_sums(losses["auto"], losses["interpret"], terms=54, steps=20)


def test_native_code_that_cannot_be_compiled_is_an_error_when_it_was_asked_for(monkeypatch):
    @contextlib.contextmanager
    def full_disk(report):
        yield
        raise OSError("No space left on device")

    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    executor = poptorch.inferenceModel(Wide(8))
    with monkeypatch.context() as patch:
        patch.setattr(native, "side_by_side", full_disk)
        with pytest.raises(OSError, match="No space left"):
            executor(torch.randn(4, 3))
    executor(torch.randn(4, 3))  # next time there is space


class Loss(nn.Module):
    """The mean square of what a model returns."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return poptorch.identity_loss(self.model(x).square().mean(), reduction="none")


class Wide(nn.Module):
    """A linear layer of a given width, and a loss that is on the next IPU if there is one."""

    def __init__(self, width):
        super().__init__()
        self.embed, self.fc = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, x):
        y = self.fc(torch.tanh(self.embed(x)))
        return poptorch.identity_loss((y * y).mean(), reduction="none")
