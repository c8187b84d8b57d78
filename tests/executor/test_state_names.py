"""Names and shapes of the optimizer's state on the host: traced graphs, and groups of replicas."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch
from poptorch import CommGroupType, VariableRetrievalMode

OPTIMIZERS = {
    "SGD": lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=False),
    "combined SGD": lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True),
    "Adam": lambda p: poptorch.optim.Adam(p, lr=0.1),
    "LAMB": lambda p: poptorch.optim.LAMB(p, lr=0.1),
    "RMSprop": lambda p: poptorch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
}


def options(traced):
    chosen = poptorch.Options()
    if traced is not None:
        chosen.Jit.traceModel(traced)
    return chosen


def train(model, batch, traced, optimizer, calls=1):
    executor = poptorch.trainingModel(model, options(traced), optimizer)
    losses = [executor(*batch)[1].item() for _ in range(calls)]
    return executor, losses


class TestTraced:
    @pytest.mark.parametrize(("traced", "prefix"), [(True, "model."), (False, ""), (None, "")])
    def test_state_dict(self, linear, batch, traced, prefix):
        optimizer = OPTIMIZERS["Adam"](linear.parameters())
        executor, _ = train(linear, batch, traced, optimizer)
        state = optimizer.state_dict()
        executor.destroy()
        expected = {f"{key}___{prefix}fc.{w}" for key in ("Accl1", "Accl2", "Step") for w in ("weight", "bias")}
        assert set(state["ipu_state"]) == expected
        assert f"learningRate___specific___{prefix}fc.weight" in state["ipu_param"]
        assert all(f"___{prefix}fc." in name for name in state["ipu_param"] if "specific" in name)

    def test_tensor_names(self, linear, batch):
        executor, _ = train(linear, batch, True, torch.optim.SGD(linear.parameters(), lr=0.1))
        names = set(executor.getTensorNames())
        assert {"model.fc.weight", "Gradient___model.fc.weight", "UpdatedVar___model.fc.weight"} <= names
        assert not {"fc.weight", "Gradient___fc.weight", "UpdatedVar___fc.weight"} & names
        assert {"fc.weight", "fc.bias"} == set(linear.state_dict())

    def test_inference_has_no_prefix(self, linear, batch):
        executor = poptorch.inferenceModel(linear, options(True))
        executor.compile(*batch)
        assert "fc.weight" in executor.getTensorNames()

    @pytest.mark.parametrize("traced", [True, False])
    @pytest.mark.parametrize("name", ["fc.bias", "model.fc.bias", "Gradient___fc.bias", "Gradient___model.fc.bias"])
    def test_both_spellings_can_be_anchored(self, linear, batch, traced, name):
        chosen = options(traced)
        chosen.anchorTensor("a", name)
        executor = poptorch.trainingModel(linear, chosen)
        executor(*batch)
        assert executor.getAnchoredTensor("a").shape == (2,)

    @pytest.mark.parametrize("source", [True, False])
    @pytest.mark.parametrize("target", [True, False])
    @pytest.mark.parametrize("name", ["SGD", "Adam"])
    def test_both_spellings_can_be_loaded(self, linear, batch, source, target, name, caplog):
        start, calls = copy.deepcopy(linear), 2
        optimizer = OPTIMIZERS[name](linear.parameters())
        executor, _ = train(linear, batch, source, optimizer, calls)
        state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(linear.state_dict())
        expected = [executor(*batch)[1].item() for _ in range(calls)]
        start.load_state_dict(weights)
        again = OPTIMIZERS[name](start.parameters())
        again.load_state_dict(state)
        assert train(start, batch, target, again, calls)[1] == expected
        assert "ignoring missing" not in caplog.text


class Grouped(nn.Module):
    def __init__(self, replicas):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(replicas, 2, 3))
        self.shared = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        y = x @ self.weight.t() + self.shared
        return y, poptorch.identity_loss((y**2).mean(), "mean")


class TestGroups:
    @staticmethod
    def training(name, state=None, weights=None):
        model = Grouped(4)
        if weights is not None:
            model.load_state_dict(weights)
        optimizer = OPTIMIZERS[name](model.parameters())
        if state is not None:
            optimizer.load_state_dict(state)
        executor = poptorch.trainingModel(model, poptorch.Options().replicationFactor(4), optimizer)
        executor.weight.replicaGrouping(CommGroupType.NoGrouping, 0, VariableRetrievalMode.OnePerGroup)
        return model, optimizer, executor

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_every_entry_has_a_row_for_each_group(self, name):
        _, optimizer, executor = self.training(name)
        executor(torch.ones(4, 3))
        entries = optimizer.state_dict()["ipu_state"]
        own = {key: value for key, value in entries.items() if "weight" in key}
        assert own
        assert all(value.shape[0] == 4 for value in own.values())
        shared = [value for key, value in entries.items() if "shared" in key]
        assert all(value.shape in ((), (2,)) for value in shared)

    def test_training_goes_on_from_a_saved_state(self):
        x = torch.arange(12.0).reshape(4, 3)
        model, optimizer, executor = self.training("Adam")
        executor(x)
        state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
        assert state["ipu_state"]["Step___weight"].tolist() == [1, 1, 1, 1]
        expected = executor(x)[1]
        _, again, other = self.training("Adam", state, weights)
        assert torch.equal(other(x)[1], expected)
        assert again.state_dict()["ipu_state"]["Step___weight"].tolist() == [2, 2, 2, 2]
