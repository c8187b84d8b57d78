"""Frozen native code: it equals the interpreted program, and nobody ever sees stale weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.host.native.draft import Draft
from poptorch.host.native.inductor import EntryPoint, Target
from poptorch.host.native.passes import make
from poptorch.runtime.values.weights import Weights


class Net(nn.Module):
    """Folding, packing, a buffer of its own, and a table that is used as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 2)
        self.conv = nn.Conv2d(2, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 2 * 2, 3)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, ids: torch.Tensor, target: torch.Tensor | None = None) -> Any:
        x = self.table(ids).permute(0, 3, 1, 2)  # (B, 2, 4, 4)
        y = self.fc(torch.relu(self.bn(self.conv(x))).flatten(1)) + self.shift
        return y if target is None else (y, nn.functional.cross_entropy(y, target))


IDS = torch.randint(0, 6, (5, 4, 4), generator=torch.Generator().manual_seed(1))


def net() -> Net:
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        model.bn.running_mean.uniform_(-1, 1)
        model.bn.running_var.uniform_(0.5, 2)
    return model


def quiet() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def answer(model: nn.Module, *inputs: torch.Tensor) -> Any:
    with torch.no_grad():
        return copy.deepcopy(model).eval()(*inputs)


def assert_same(given: torch.Tensor, expected: torch.Tensor) -> None:
    assert_close_sums(given, expected, terms=2 * 3 * 3, steps=3)  # a convolution, its norm, another layer


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")


@pytest.fixture
def model() -> Net:
    return net()


@pytest.fixture
def executor(native: None, model: Net) -> Any:
    options = quiet().updatableNamedBuffers(["shift"])
    executor = poptorch.inferenceModel(model, options)
    assert_same(executor(IDS), answer(model, IDS))
    assert "frozen" in executor.executable.code.micro_batch.source
    return executor


def _scale_everything(model: nn.Module) -> None:
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point():
                value.mul_(1.5).add_(0.1)


def _by_copying(executor: Any, model: nn.Module) -> None:
    _scale_everything(model)
    executor.copyWeightsToDevice()


def _by_loading(executor: Any, model: nn.Module) -> None:
    other = copy.deepcopy(model)
    _scale_everything(other)
    executor.load_state_dict(other.state_dict())


def _by_named_buffers(executor: Any, model: nn.Module) -> None:
    model.shift.add_(3)
    executor.copyNamedBuffersToDevice()


def _by_attaching_again(executor: Any, model: nn.Module) -> None:
    executor.detachFromDevice()
    _scale_everything(model)
    executor.attachToDevice()


@pytest.mark.parametrize("change", [_by_copying, _by_loading, _by_named_buffers, _by_attaching_again])
def test_new_weights_are_used_at_the_next_call(
    executor: Any, model: Net, change: Callable[[Any, nn.Module], None]
) -> None:
    before = answer(model, IDS)
    change(executor, model)
    after = answer(model, IDS)
    assert not torch.allclose(before, after, atol=1e-2)
    for _ in range(2):
        assert_same(executor(IDS), after)


def test_weights_are_prepared_once_for_many_calls(executor: Any, model: Net) -> None:
    weights = executor.session.engine.memory.weights
    (prepared,) = weights.derived.values()
    executor(IDS)
    assert next(iter(weights.derived.values())) is prepared
    executor.copyWeightsToDevice()
    assert not weights.derived, "the old values are let go before new ones are made"


def test_inference_follows_the_training_of_the_same_model(monkeypatch: pytest.MonkeyPatch, model: Net) -> None:
    training = poptorch.trainingModel(model.train(), quiet(), torch.optim.SGD(model.parameters(), lr=0.5))
    inference = poptorch.inferenceModel(model, quiet())
    target = torch.randint(0, 3, (5,))
    for _ in range(2):
        monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
        training(IDS, target)
        monkeypatch.setenv("POPTORCH_CODEGEN", "native")
        training.detachFromDevice()
        model.eval()
        assert_same(inference(IDS), answer(model, IDS))
        inference.detachFromDevice()
        model.train()


class Counting(nn.Module):
    """Writes to one of its buffers, and reads another."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(4))
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.fc(x) * self.scale + self.calls


@pytest.mark.parametrize("entry", EntryPoint)
def test_what_the_program_writes_to_is_not_frozen(monkeypatch: pytest.MonkeyPatch, entry: EntryPoint) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    model = Counting().eval()
    executor = poptorch.inferenceModel(model, quiet())
    x = torch.randn(3, 4)
    executor.compile(x)
    program = executor.program
    run = make(Draft.of(program, Target(1, entry))).run
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    parameters = Weights(state[p.name].detach().clone() for p in program.ports if p.role.value == "parameter")
    buffers = [state[p.name].clone() for p in program.ports if p.role.value == "buffer"]
    with torch.no_grad():
        base = model.fc(x) * 2
        for call in (1, 2, 3):
            assert_same(run(parameters, buffers, [], [x], (), None)[0], base + call)
        for weight in parameters:
            weight.mul_(2)
        parameters.changed()
        assert_same(run(parameters, buffers, [], [x], (), None)[0], 2 * base + 4)
        assert_same(run(list(parameters), buffers, [], [x], (), None)[0], 2 * base + 5)


class Recurrent(nn.Module):
    """An LSTM whose weights oneDNN packs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def test_recurrent_layers_are_frozen(native: None) -> None:
    model, x = Recurrent().eval(), torch.randn(3, 5, 4)
    executor = poptorch.inferenceModel(model, quiet())
    assert_same(executor(x), answer(model, x))
    _by_copying(executor, model)
    assert_same(executor(x), answer(model, x))
    assert "frozen" in executor.executable.code.micro_batch.source
