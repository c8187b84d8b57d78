"""What eager programs do in forward because it runs in each call: said at the user's line, once."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import poptorch
from poptorch._logging import forget_said

X = torch.ones(2, 3)


class Net(nn.Module):
    def __init__(self, forward, **attributes):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(3)
        self.function = forward
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.function(self, x)


def told(model, inputs=X, calls=2):
    executor = poptorch.inferenceModel(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            executor(inputs)
    return [(str(warning.message), warning.filename) for warning in caught if warning.category is UserWarning]


def changed(self, x):
    self.scale = self.scale * 0.5
    return self.layer(x) * self.scale


def test_a_python_number_that_forward_changes():
    ((message, file),) = told(Net(changed, scale=1.0).eval())
    assert "changes the Python value 'scale' from 1.0 to 0.5" in message
    assert "register_buffer()" in message
    assert file == __file__


@pytest.mark.parametrize(("draw", "name"), [(np.random.rand, "numpy.random"), (random.random, "Python's random")])
def test_random_numbers_that_are_not_torchs(draw, name):
    ((message, file),) = told(Net(lambda self, x: self.layer(x) * draw()).eval())
    assert f"draws random numbers from {name}" in message
    assert file == __file__


def test_printing_a_tensor(capsys):
    def forward(self, x):
        print(x)
        return self.layer(x)

    ((message, file),) = told(Net(forward).eval())
    assert "poptorch.ipu_print_tensor" in message
    assert file == __file__
    shown = capsys.readouterr().out
    assert shown == "Tensor(shape=(2, 3), dtype=torch.float32, no values while the model is compiled)\n"


@pytest.mark.parametrize("layer", ["dropout", "norm"])
def test_inference_in_training_mode(layer):
    model = Net(lambda self, x: getattr(self, layer)(x))
    ((message, file),) = told(model.train())
    assert f"The model is in training mode: {layer!r}" in message
    assert "model.eval()" in message
    assert file == __file__
    assert told(model.eval()) == []


def test_training_mode_without_an_effect_is_no_matter():
    assert told(Net(lambda self, x: self.layer(x)).train()) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types_that_the_device_does_not_have(dtype, caplog):
    forget_said()
    model = Net(lambda self, x: self.layer(x)).eval().to(dtype)
    assert poptorch.inferenceModel(model)(X.to(dtype)).dtype is torch.float32
    (text,) = [record.getMessage() for record in caplog.records]
    name = str(dtype).removeprefix("torch.").capitalize()
    assert text.startswith(f"{name} is not supported natively on IPU: weights and inputs of this type are computed")


@pytest.mark.parametrize(("value", "said"), [(2**31, True), (-(2**40), True), (2**31 - 1, False)])
def test_buffers_of_wide_integers(value, said):
    model = Net(lambda self, x: (self.layer(x), self.wide)).eval()
    model.register_buffer("wide", torch.tensor([value, 3]))
    texts = [message for message, _ in told(model)]
    assert any("The buffer wide has values that do not fit into 32 bits" in text for text in texts) is said


def test_an_ordinary_model_is_told_nothing(caplog):
    assert told(Net(lambda self, x: self.norm(self.dropout(self.layer(x)))).eval()) == []
    assert caplog.records == []
