"""What would go wrong without a word: mistakes that users make are errors or warnings that say what to do."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch

X, T = torch.ones(4, 3), torch.zeros(4, 2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, target):
        return F.mse_loss(self.fc(x), target)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


class TestOptimizers:
    def test_of_another_model(self):
        with pytest.raises(poptorch.Error, match=r"trains nothing .*: parameter 0 of group 0, of shape \[2, 3\]"):
            poptorch.trainingModel(Model(), optimizer=sgd(Model().parameters()))

    def test_of_another_model_later(self):
        model = Model()
        executor = poptorch.trainingModel(model, optimizer=sgd(model.parameters()))
        first = executor(X, T)
        with pytest.raises(poptorch.Error, match=r"trains nothing of the model.*parameters\(\) of the model"):
            executor.setOptimizer(sgd(Model().parameters()))
        assert executor(X, T) < first

    def test_partly_of_another_model(self, log):
        model = Model()
        poptorch.trainingModel(model, optimizer=sgd([*model.parameters(), *Model().parameters()]))(X, T)
        assert "parameter 2 of group 0, of shape [2, 3], of the optimizer is no parameter of the model" in log.text

    def test_nothing_to_train(self, log):
        model = Model().requires_grad_(False)
        poptorch.trainingModel(model)(X, T)
        assert "Nothing is trained" in log.text

    def test_parameters_added_later(self):
        model = Model()
        optimizer = sgd([model.fc.weight])
        executor = poptorch.trainingModel(model, optimizer=optimizer)
        executor(X, T)
        optimizer.add_param_group({"params": [model.fc.bias]})
        with pytest.raises(poptorch.Error, match=r"Parameter 0 of group 1, of shape \[2\], was not in the optimizer"):
            executor.setOptimizer(optimizer)

    def test_constants_of_native_optimizers_have_no_variable_attributes(self):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        executor = poptorch.trainingModel(model, optimizer=optimizer)
        executor(X, T)
        optimizer.param_groups[0]["nesterov"] = True
        with pytest.raises(poptorch.Error, match=r"call destroy\(\) on the model and wrap it again"):
            executor.setOptimizer(optimizer)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_executors_are_copied_otherwise(duplicate):
    executor = poptorch.trainingModel(Model())
    executor(X, T)
    with pytest.raises(poptorch.Error, match=r"cannot be copied.*\.model.*torch\.save"):
        duplicate(executor)
    executor(X, T)


def test_phases_without_ipus():
    class Phased(Model):
        def forward(self, x, target):
            with poptorch.Block("only"):
                return super().forward(x, target)

    options = poptorch.Options().setExecutionStrategy(poptorch.SerialPhasedExecution("only"))
    with pytest.raises(poptorch.Error, match=r"No active Block: .* is in block 'only', for which no IPU is known"):
        poptorch.trainingModel(Phased(), options)(X, T)


def test_options_that_are_compiled_in_are_not_edited(tmp_path, log):
    path = str(tmp_path / "model.poptorch")
    model = Model()
    executor = poptorch.trainingModel(model)
    executor(X, T)
    executor.save(path)
    expected = executor(X, T)
    executor.destroy()

    def edit(options):
        options.deviceIterations(3).connectionType(poptorch.ConnectionType.OnDemand)
        options.Training.gradientAccumulation(2)

    loaded = poptorch.load(path, edit)
    assert "edit_opts_fn changed Training.gradient_accumulation, device_iterations, with no effect" in log.text
    assert loaded.options.device_iterations == 1
    assert loaded.options.connection_type == poptorch.ConnectionType.OnDemand
    assert torch.equal(loaded(X, T), expected)


@pytest.mark.parametrize("convert", [lambda x: x.numpy(), np.asarray, lambda x: x.detach().numpy()])
def test_arrays_have_no_values_while_compiling(convert):
    class Arrays(Model):
        def forward(self, x, target):
            return super().forward(x, target) * float(convert(x).mean())

    with pytest.raises(poptorch.Error, match=r"makes a NumPy array of a tensor at .*test_nothing_in_silence\.py:\d+"):
        poptorch.trainingModel(Arrays())(X, T)


def test_the_data_of_parameters_is_not_replaced():
    class Replaces(Model):
        def forward(self, x, target):
            self.fc.weight.data = self.fc.weight.data * 2
            return super().forward(x, target)

    model = Replaces()
    before = model.fc.weight.detach().clone()
    with pytest.raises(poptorch.Error, match=r"The data of parameter fc\.weight is replaced"):
        poptorch.trainingModel(model)(X, T)
    assert torch.equal(model.fc.weight, before)
