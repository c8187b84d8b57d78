"""Results reach the user without detours: as the program made them, or copied once to where they are gathered."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import poptorch
from closeness import assert_close_sums
from host_code import change_code, change_stages
from poptorch.executable.host_code import Code
from poptorch.runtime import streams

ROWS, COLUMNS = 64, 1024
aten = torch.ops.aten
COPYING = {aten.copy_.default, aten.clone.default, aten._to_copy.default, aten.cat.default, aten.stack.default}


class Copies(TorchDispatchMode):
    """Counts the elements that are copied in this thread; a bias repeated for each row is not a copy of a result."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        repeated = function is aten.copy_.default and 0 in args[1].stride()
        if function in COPYING and result.numel() >= ROWS * COLUMNS and not repeated:
            self.elements += result.numel()
        return result


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, COLUMNS)

    def forward(self, x, target=None):
        y = torch.relu(self.fc(x))
        return y if target is None else (y, nn.functional.mse_loss(y, target))


class Two(Net):
    """The same on two IPUs."""

    def forward(self, x, target=None):
        with poptorch.Block("0", ipu_id=0):
            x = x * 1.0
        with poptorch.Block("1", ipu_id=1):
            return super().forward(x, target)


@pytest.fixture(params=["interpret", "native"], autouse=True)
def _level(request, monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", request.param)


def made_by(executor):
    """The addresses of what the program returns, as it runs."""
    addresses = []
    code = executor.executable.code
    real = code.micro_batch.run if code.step is None else code.step.run

    def run(*args):
        outputs = real(*args)
        addresses.extend(t.data_ptr() for t in outputs if isinstance(t, torch.Tensor))
        return outputs

    if code.step is None:
        change_stages(executor, lambda *_: Code(run, ""))
    else:
        change_code(executor, step=Code(run, ""))
    return addresses


def test_one_micro_batch_is_handed_over_as_it_is():
    model = Net()
    executor = poptorch.inferenceModel(model)
    x = torch.randn(ROWS, 8)
    executor(x)
    addresses = made_by(executor)
    with Copies() as copies:
        result = executor(x)
    assert addresses == [result.data_ptr()]
    assert copies.elements == 0
    assert_close_sums(result, model(x), terms=8, steps=2)


def test_so_are_the_outputs_of_a_training_step():
    model = Net()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.randn(ROWS, 8), torch.randn(ROWS, COLUMNS)
    executor(*data)
    addresses = made_by(executor)
    with Copies() as copies:
        result, _ = executor(*data)
    assert result.data_ptr() in addresses
    assert copies.elements == 0


def test_several_micro_batches_are_gathered_with_one_copy():
    model = Net()
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(3))
    x = torch.randn(3 * ROWS, 8)
    executor(x)
    with Copies() as copies:
        result = executor(x)
    assert copies.elements == result.numel()
    assert_close_sums(result, model(x), terms=8, steps=2)


@pytest.mark.parametrize("iterations", [1, 2])
def test_stages_of_a_plan_deliver_directly(monkeypatch, iterations):
    put, take, given, taken = streams.OutputStream.put, streams.OutputStream.take, [], []

    def watched_put(self, tick, value):
        given.append(value.data_ptr())
        put(self, tick, value)

    def watched_take(self):
        taken.append(take(self))
        return taken[-1]

    model = Two()
    options = poptorch.Options().deviceIterations(max(2, iterations))
    options.outputMode(poptorch.OutputMode.All if iterations > 1 else poptorch.OutputMode.Final)
    executor = poptorch.inferenceModel(model, options)
    x = torch.randn(2 * ROWS, 8)
    executor(x)
    monkeypatch.setattr(streams.OutputStream, "put", watched_put)
    monkeypatch.setattr(streams.OutputStream, "take", watched_take)
    with Copies() as copies:  # what happens after the workers
        result = executor(x)
    assert copies.elements == 0
    assert [t.data_ptr() for t in taken] == [result.data_ptr()]
    assert len(given) == 2
    assert (result.data_ptr() in given) == (iterations == 1)
    assert_close_sums(result, model(x)[-result.shape[0] :], terms=8, steps=2)
