"""Mistakes before anything is compiled: models that cannot be wrapped, first calls, options, strategies."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from refused import Refused, Rows, check, check_devices_are_free, failure_of
from torch import nn
from torch.nn import functional as F

import poptorch
from poptorch.experimental import IPUContext, IPUScope

X, T = torch.ones(4, 3), torch.zeros(4, 2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        return F.mse_loss(self.fc(x), target)


def first_call(x: Any, *, options: poptorch.Options | None = None) -> Any:
    return poptorch.inferenceModel(nn.ReLU(), options)(x)


rows = Rows()

# -- models ------------------------------------------------------------------------------------------------------------


@rows("Expected a torch.nn.Module", TypeError)
def a_function():
    poptorch.inferenceModel(lambda x: x)


@rows("Expected a torch.nn.Module", TypeError)
def a_class():
    poptorch.inferenceModel(nn.ReLU)


@rows("It is a TorchScript module")
def a_scripted_model():
    poptorch.inferenceModel(torch.jit.script(nn.Linear(3, 2)))


@rows("Its sub-module '0' is a TorchScript module")
def a_traced_layer():
    poptorch.trainingModel(nn.Sequential(torch.jit.trace(nn.Linear(3, 2), X)))


@rows("whose parameters have no shape yet")
def a_lazy_layer():
    poptorch.inferenceModel(nn.LazyLinear(3))


@rows("Invalid type: 'options' is of type")
def options_of_another_type():
    poptorch.inferenceModel(nn.ReLU(), {"deviceIterations": 2})


@rows("Invalid type: 'options' is of type")
def optimizer_instead_of_options():
    model = Model()
    poptorch.trainingModel(model, torch.optim.SGD(model.parameters(), lr=0.1))


@rows("trains nothing of the model")
def optimizer_of_another_model():
    poptorch.trainingModel(Model(), optimizer=torch.optim.SGD(Model().parameters(), lr=0.1))


@rows("Unsupported optimizer type", AssertionError)
def optimizer_that_is_not_supported():
    model = Model()
    poptorch.trainingModel(model, optimizer=torch.optim.LBFGS(model.parameters()))


@rows("Loss scaling cannot be 0")
def loss_scaling_of_zero():
    model = Model()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=0.0)
    poptorch.trainingModel(model, optimizer=optimizer)(X, T)


@rows("All buffers must be an instance of torch.Tensor")
def parameter_as_buffer():
    model = Model()
    model.register_buffer("odd", nn.Parameter(torch.ones(1)))
    poptorch.trainingModel(model)


@rows("module has already been assigned to a block")
def two_blocks_for_one_layer():
    poptorch.BeginBlock(poptorch.BeginBlock(nn.ReLU(), "a", ipu_id=0), "b", ipu_id=1)


# -- first calls -------------------------------------------------------------------------------------------------------


@rows("Unsupported input type torch.complex64")
def complex_numbers():
    first_call(X.to(torch.complex64))


@rows("Unsupported input type torch.uint16")
def integers_of_a_new_type():
    first_call(X.to(torch.uint16))


@rows("Unsupported input type torch.float32 with the layout torch.sparse_coo")
def sparse_tensor():
    first_call(X.to_sparse())


@rows("is a nested tensor")
def nested_tensor():
    first_call(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))


@rows("Zero-sized tensors are unsupported")
def tensor_without_elements():
    first_call(torch.ones(0, 3))


@rows("The input input is on the device 'meta'")
def tensor_without_values():
    first_call(X.to("meta"))


@rows("Invalid batch dimension", AssertionError)
def batch_that_does_not_divide():
    first_call(X, options=poptorch.Options().deviceIterations(3))


@rows("Invalid batch dimension", AssertionError)
def number_for_several_iterations():
    first_call(torch.tensor(1.0), options=poptorch.Options().deviceIterations(2))


@rows("Cannot anchor 'nothing'")
def anchor_that_does_not_exist():
    options = poptorch.Options()
    options.anchorTensor("a", "nothing")
    first_call(X, options=options)


@rows("You must set poptorch.Options().Training.gradientAccumulation to 1")
def accumulation_in_inference():
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    first_call(X, options=options)


@rows("Too many IPUs requested")
def too_many_replicas():
    first_call(torch.ones(1000, 3), options=poptorch.Options().replicationFactor(1000))


@rows("Automatic loss scaling is only supported for training")
def loss_scaling_in_inference():
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    first_call(X, options=options)


# -- options -----------------------------------------------------------------------------------------------------------


@rows("Unexpected type <class 'str'> for option device_iterations", AssertionError)
def iterations_as_text():
    poptorch.Options().deviceIterations("2")


@rows("Did you mean 'device_iterations'?", AssertionError)
def setter_that_is_assigned_to():
    poptorch.Options().deviceIterations = 3


@rows("outputMode expects a OutputMode", AssertionError)
def output_mode_as_text():
    poptorch.Options().outputMode("All")


@rows("EveryN anchor must have output_return_period", AssertionError)
def output_mode_without_period():
    poptorch.Options().outputMode(poptorch.OutputMode.EveryN)


@rows("setExecutionStrategy expects an object", AssertionError)
def class_of_a_strategy():
    poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution)


@rows("Can't modify frozen Options", AttributeError)
def options_of_a_wrapped_model():
    options = poptorch.Options()
    poptorch.inferenceModel(nn.ReLU(), options)
    options.deviceIterations(2)


@rows("Block IDs are supposed to be strings", AssertionError)
def stage_of_a_number():
    poptorch.Stage(1)


@rows("associated with more than one stage", AssertionError)
def block_in_two_stages():
    poptorch.PipelinedExecution(poptorch.Stage("a"), poptorch.Stage("a"))


# -- functions and blocks ----------------------------------------------------------------------------------------------


@rows("it would produce dynamic output shapes")
def mask_in_a_function():
    IPUContext(lambda x: x[x > 0])(X)  # here


@rows("mat1 and mat2 shapes cannot be multiplied", advice=False)
def shapes_in_a_function():
    IPUContext(lambda x: x @ x)(X)  # here


@rows("it would produce dynamic output shapes")
def mask_in_a_block():
    with IPUScope([X]) as ipu:
        y = X.to("ipu")
        ipu.outputs(y[y > 0])  # here


@rows("Unsupported ops found in compiled model")
def unique_in_a_block():
    with IPUScope([X]) as ipu:
        ipu.outputs(torch.unique(X.to("ipu")))  # here


@rows("mat1 and mat2 shapes cannot be multiplied", advice=False)
def shapes_in_a_block():
    with IPUScope([X]) as ipu:
        y = X.to("ipu")
        ipu.outputs(y @ y)  # here


@rows("Only tensors may be returned")
def number_from_a_block():
    with IPUScope([X]) as ipu:
        ipu.outputs(3)


@rows("has not called outputs()")
def block_without_outputs():
    with IPUScope([X]) as ipu:
        X.to("ipu")
    ipu(X)


@rows("The block has 1 inputs, but 2 were given")
def block_with_more_inputs():
    with IPUScope([X]) as ipu:
        ipu.outputs(X.to("ipu") + 1)
    ipu(X, X)


@pytest.mark.parametrize("row", rows.all, ids=str)
def test_mistakes_before_compilation(row: Refused) -> None:
    check(row, failure_of(row))
    gc.collect()
    check_devices_are_free()
