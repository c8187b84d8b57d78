"""What is changed on a module after it was compiled, and has no effect, is said once."""

from __future__ import annotations

import time
import warnings

import pytest
import torch
from torch import nn

import poptorch
from poptorch.executor.frozen_attributes import FrozenAttributes


class Model(nn.Module):
    def __init__(self, depth=1):
        super().__init__()
        self.tau, self.calls = 2.0, 0
        self.layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(depth)))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        self.calls += 1
        y = self.dropout(self.layers(x)) * self.tau
        return y, poptorch.identity_loss(y.mean(), "none")


def training(model):
    return poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


X = torch.ones(1, 2)


def silent(executor):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", r"forward\(\) changes the Python value 'calls'")
        warnings.filterwarnings("ignore", "The model is in training mode")
        executor(X)


@pytest.mark.parametrize("wrap", [training, poptorch.inferenceModel])
def test_what_stays_is_not_mentioned(wrap):
    model = Model()
    executor = wrap(model)
    for _ in range(3):
        silent(executor)
    model.dropout.p = 0.25 + 0.25  # the same number again
    model.note = "new"
    silent(executor)


@pytest.mark.parametrize("wrap", [training, poptorch.inferenceModel])
def test_another_mode(wrap):
    model = Model()
    executor = wrap(model)
    executor(X)
    model.eval()
    with pytest.warns(UserWarning, match=r"training was set from True to False.*compiled in train mode.*wrap it once"):
        executor(X)
    silent(executor)


def test_the_mode_that_an_executor_was_told():
    executor = poptorch.inferenceModel(Model())
    executor.eval()
    silent(executor)
    executor.train()
    with pytest.warns(UserWarning, match="compiled in eval mode"):
        executor(X)


@pytest.mark.parametrize("wrap", [training, poptorch.inferenceModel])
def test_numbers(wrap):
    model = Model()
    executor = wrap(model)
    executor(X)
    executor.model.dropout.p = 0.1
    with pytest.warns(UserWarning, match=r"dropout\.p was set from 0\.5 to 0\.1 .*no effect.*destroy\(\)"):
        executor(X)
    executor.model.tau = 3.0
    with pytest.warns(UserWarning, match=r"tau was set from 2\.0 to 3\.0"):
        executor(X)
    silent(executor)


class Constants(nn.Module):
    """Attributes of many kinds that become constants of the program."""

    def __init__(self):
        super().__init__()
        self.mask, self.scale, self.act = torch.ones(2), [1.0, 2.0], torch.relu
        self.settings = {"bias": 1.0}
        self.register_buffer("edges", torch.eye(2).to_sparse().coalesce())

    def forward(self, x):
        return self.act(torch.sparse.mm(self.edges, x.t()).t() * self.mask * self.scale[0]) + self.settings["bias"]


CHANGES = {
    "mask was replaced by another tensor": lambda m: setattr(m, "mask", torch.zeros(2)),
    "mask was changed in place": lambda m: m.mask.zero_(),
    r"scale was set from \[1\.0, 2\.0\] to \[3\.0, 2\.0\]": lambda m: m.scale.__setitem__(0, 3.0),
    "act was set from .*relu to .*tanh": lambda m: setattr(m, "act", torch.tanh),
    "settings was set from {'bias': 1.0} to {'bias': 2.0}": lambda m: m.settings.update(bias=2.0),
    "edges was changed in place": lambda m: m.edges.values().mul_(2),
    "edges was replaced by another tensor": lambda m: m.register_buffer("edges", torch.ones(2, 2).to_sparse()),
}


@pytest.mark.parametrize("said", CHANGES)
def test_constants_of_other_kinds(said):
    model = Constants()
    executor = poptorch.inferenceModel(model)
    executor(X)
    silent(executor)
    CHANGES[said](model)
    with pytest.warns(UserWarning, match=f"^{said} after the model was compiled.*no effect"):
        executor(X)
    silent(executor)


def test_an_equal_constant_is_not_mentioned():
    model = Constants()
    executor = poptorch.inferenceModel(model)
    executor(X)
    model.scale, model.settings = [1.0, 2.0], {"bias": 1.0}
    silent(executor)


def test_the_object_that_was_wrapped_for_inference():
    model = Model().eval()
    executor = poptorch.inferenceModel(model)
    executor(X)
    model.tau = 3.0
    with pytest.warns(UserWarning, match=r"^tau was set from 2\.0 to 3\.0 after"):
        executor(X)
    silent(executor)


def test_what_was_changed_before_compiling_counts():
    model = Model()
    executor = training(model)
    model.dropout.p = 0.0
    silent(executor)


def test_the_root_of_a_training_model_is_copied_when_it_is_wrapped():
    model = Model()
    executor = training(model)
    model.tau = 3.0
    with pytest.warns(UserWarning, match=r"tau was set from 2\.0 to 3\.0 .*wrap the model again"):
        executor(X)
    executor.destroy()
    silent(training(model))


def test_a_model_that_is_compiled_anew_has_what_was_set():
    model = Model().eval()
    executor = poptorch.inferenceModel(model)
    executor(X)
    executor.model.tau = 3.0
    executor.destroy()
    silent(executor)
    torch.testing.assert_close(executor(X)[0], model.layers(X).detach() * 3)


def test_large_models_are_compared_in_turns():
    model = Model(depth=100)
    attributes = FrozenAttributes(model, model)
    for _ in range(100):
        attributes.check()
    model.layers[70].in_features = 3
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(10):
            attributes.check()
    assert ["layers.70.in_features was set from 2 to 3" in str(one.message) for one in said] == [True]
    started = time.perf_counter()
    for _ in range(1000):
        attributes.check()
    assert time.perf_counter() - started < 0.5
