"""Mistakes with wrapped models: their arguments, weights, optimizers, devices and files."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from refused import Refused, Rows, check, check_devices_are_free, failure_of
from torch import nn
from torch.nn import functional as F

import poptorch

X, T = torch.ones(4, 3), torch.zeros(4, 2)
MISMATCH = "destroy the current model with its destroy() method"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Any, target: Any = None, scale: float = 1.0) -> Any:
        x = x["x"] if isinstance(x, dict) else x[0] if isinstance(x, (list, tuple)) else x
        y = self.fc(x) * scale
        return y if target is None else (y, F.mse_loss(y, target))


rows = Rows()
"""Each takes an executor that was compiled, its model and its optimizer, which is ``None`` for inference."""

trained = Rows()
"""The same for training."""

# -- arguments ---------------------------------------------------------------------------------------------------------


@rows(MISMATCH)
def other_batch_size(executor, model, optimizer):
    executor(torch.ones(5, 3))


@rows("Shape mismatch for x")
def other_features(executor, model, optimizer):
    executor(torch.ones(4, 7))


@rows("Data type mismatch for x: expected torch.float32 but got torch.float16")
def other_type(executor, model, optimizer):
    executor(X.half())


@rows("Type mismatch for x: expected <class 'torch.Tensor'> but got <class 'numpy.ndarray'>")
def array(executor, model, optimizer):
    executor(X.numpy())


@rows("Type mismatch for x")
def numbers(executor, model, optimizer):
    executor([1.0, 2.0])


@rows("Type mismatch for x")
def other_structure(executor, model, optimizer):
    executor((X, X))


@rows("Value mismatch for scale: expected 1.0 but got 2.0")
def other_number(executor, model, optimizer):
    executor(X, scale=2.0)


@rows("Type mismatch for target")
def one_more_tensor(executor, model, optimizer):
    executor(X, T)


@rows("Mandatory parameter x missing")
def nothing(executor, model, optimizer):
    executor()


@rows("Too many arguments provided", AssertionError)
def too_many(executor, model, optimizer):
    executor(X, None, 1.0, X)


@rows("is not a valid parameter", AssertionError)
def unknown_name(executor, model, optimizer):
    executor(X, labels=X)


@rows("was passed more than once", AssertionError)
def twice(executor, model, optimizer):
    executor(X, x=X)


@rows("Shape mismatch for x")
def empty_batch(executor, model, optimizer):
    executor(torch.ones(0, 3))


@rows("The input x is on the device 'meta'")
def other_device(executor, model, optimizer):
    executor(X.to("meta"))


# -- weights, devices, files -------------------------------------------------------------------------------------------


@rows("Device is already attached")
def attached_twice(executor, model, optimizer):
    executor.attachToDevice()


@rows("setOptimizer() needs a training model")
def optimizer_for_inference(executor, model, optimizer):
    executor.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


@rows("No named buffers marked as updatable")
def buffers_that_are_not_updatable(executor, model, optimizer):
    executor.copyNamedBuffersToDevice()


@rows("rng_state must be a list of integers")
def random_state_of_text(executor, model, optimizer):
    executor.rng_state = "abc"


@rows("Cycle count logging is disabled")
def cycles_that_were_not_counted(executor, model, optimizer):
    executor.cycleCount()


@rows("No tensor with name nothing found", AssertionError)
def anchor_that_does_not_exist(executor, model, optimizer):
    executor.getAnchoredTensor("nothing")


@rows("backward() cannot be called explicitly")
def backward_of_a_result(executor, model, optimizer):
    executor(X).backward()


@rows("An executor cannot be copied")
def deep_copy(executor, model, optimizer):
    copy.deepcopy(executor)


@rows("An executor cannot be copied")
def shallow_copy(executor, model, optimizer):
    copy.copy(executor)


@rows("does not contain Poptorch metadata")
def file_of_torch(executor, model, optimizer):
    path = Path(model.folder) / "weights.pt"
    torch.save(X, path)
    poptorch.load(str(path))


@rows("No such file or directory")
def file_that_does_not_exist(executor, model, optimizer):
    poptorch.load(str(Path(model.folder) / "nothing.poptorch"))


@rows("was exported from another program")
def executable_of_another_model(executor, model, optimizer):
    path = str(Path(model.folder) / "other.poptorch")
    poptorch.inferenceModel(nn.Linear(3, 4)).compileAndExport(path, X)
    poptorch.inferenceModel(nn.Linear(3, 2)).loadExecutable(path)


@rows("Parameter fc.weight was float32[2,3] when the model was compiled")
def layer_of_another_size(executor, model, optimizer):
    try:
        original, model.fc = model.fc, nn.Linear(5, 2)
        executor(X)
    finally:
        model.fc = original


# -- training ----------------------------------------------------------------------------------------------------------


@trained("trains nothing of the model")
def optimizer_of_another_model(executor, model, optimizer):
    executor.setOptimizer(poptorch.optim.SGD(Model().parameters(), lr=0.1))


@trained("Expected an optimizer of poptorch.optim or torch.optim")
def no_optimizer(executor, model, optimizer):
    executor.setOptimizer(None)


@trained("Expected an optimizer of poptorch.optim or torch.optim")
def schedule(executor, model, optimizer):
    executor.setOptimizer(torch.optim.lr_scheduler.StepLR(optimizer, 1))


@trained("Can not replace optimizer of type SGD with new optimizer of type Adam")
def other_family(executor, model, optimizer):
    executor.setOptimizer(poptorch.optim.Adam(model.fc.parameters(), lr=0.1))


@trained("Expected a number for lr", AssertionError)
def rate_that_is_no_number(executor, model, optimizer):
    rate = optimizer.param_groups[0]["lr"]
    try:
        optimizer.param_groups[0]["lr"] = "fast"
        executor.setOptimizer(optimizer)
    finally:
        optimizer.param_groups[0]["lr"] = rate


@trained("was not in the optimizer that the model was compiled with")
def parameters_added_later(executor, model, optimizer):
    optimizer.add_param_group({"params": [model.extra]})
    try:
        executor.setOptimizer(optimizer)
    finally:
        del optimizer.param_groups[-1]


@trained("Model has already been wrapped", RuntimeError)
def wrapped_twice(executor, model, optimizer):
    poptorch.trainingModel(model)


@trained("The optimizer still has the old one")
def replaced_parameter(executor, model, optimizer):
    weight = model.fc.weight
    try:
        model.fc.weight = nn.Parameter(torch.ones(2, 3))
        executor(X, T)
    finally:
        model.fc.weight = weight


@trained("requires_grad_(False) froze parameter fc.weight")
def frozen_parameter(executor, model, optimizer):
    try:
        model.fc.weight.requires_grad_(False)
        executor(X, T)
    finally:
        model.fc.weight.requires_grad_(True)


@trained("Only IPU optimizer states can be loaded", RuntimeError)
def state_of_another_optimizer(executor, model, optimizer):
    optimizer.load_state_dict(torch.optim.SGD(model.fc.parameters(), lr=0.1).state_dict())


@pytest.mark.parametrize("row", rows.all, ids=str)
def test_mistakes_with_inference_models(row: Refused, tmp_path: Path) -> None:
    model = Model()
    model.folder = str(tmp_path)
    executor = poptorch.inferenceModel(model)
    wanted = executor(X)
    gc.collect()  # executors of earlier tests
    check(row, failure_of(row, executor, model, None))
    check_devices_are_free(in_use=1)
    assert torch.equal(executor(X), wanted)


@pytest.mark.parametrize("row", trained.all, ids=str)
def test_mistakes_with_training_models(row: Refused) -> None:
    model = Model()
    model.extra = nn.Parameter(torch.ones(1))
    optimizer = poptorch.optim.SGD(model.fc.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    _, first = executor(X, T)
    gc.collect()
    check(row, failure_of(row, executor, model, optimizer))
    check_devices_are_free(in_use=1)
    _, second = executor(X, T)
    assert second < first
    executor.destroy()


def test_uncompiled_models() -> None:
    executor = poptorch.inferenceModel(Model())
    for use in (executor.copyWeightsToHost, executor.detachFromDevice, lambda: executor.save("unused")):
        row = Refused(use, "Model has not been compiled or has been destroyed")
        check(row, failure_of(Refused(use, row.phrase)))
    assert executor(X).shape == (4, 2)
    executor.detachFromDevice()
    row = Refused(executor.copyWeightsToDevice, "Device is not attached")
    check(row, failure_of(row))
    executor.attachToDevice()
