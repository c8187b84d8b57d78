"""The optimizer object and the compiled update: replacement, state, transfers (spec: executor §10)."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums

STATE_DOWN = "Writing optimiser state tensors from IPU to host"
STATE_UP = "Writing optimiser state tensors from host to IPU memory"


def weights(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def moved(model, before):
    return max(float((v - before[k]).abs().max()) for k, v in model.state_dict().items())


class TestSetOptimizer:
    def test_a_changed_learning_rate_counts_after_set_optimizer_only(self, linear, batch):
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
        executor = poptorch.trainingModel(linear, optimizer=optimizer)
        executor(*batch)
        optimizer.param_groups[0]["lr"] = 0.0
        before = weights(linear)
        executor(*batch)
        assert moved(linear, before) > 0
        executor.setOptimizer(optimizer)
        before = weights(linear)
        executor(*batch)
        assert moved(linear, before) == 0

    def test_before_compile_it_replaces_the_optimizer(self, linear, batch):
        executor = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.5))
        executor.setOptimizer(torch.optim.SGD(linear.parameters(), lr=0.0))
        before = weights(linear)
        executor(*batch)
        assert moved(linear, before) == 0

    def test_while_detached_it_counts_from_the_next_attach(self, linear, batch):
        executor = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.5))
        executor(*batch)
        executor.detachFromDevice()
        executor.setOptimizer(torch.optim.SGD(linear.parameters(), lr=0.0))
        before = weights(linear)
        executor(*batch)
        assert moved(linear, before) == 0

    def test_schedulers(self, linear, batch):
        reference = copy.deepcopy(linear)
        runs = []
        for model in (linear, reference):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
            runs.append((model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)))
        executor = poptorch.trainingModel(linear, optimizer=runs[0][1])
        for _ in range(4):
            executor(*batch)
            runs[0][2].step()
            executor.setOptimizer(runs[0][1])
            runs[1][1].zero_grad()
            reference(*batch)[1].backward()
            runs[1][1].step()
            runs[1][2].step()
        assert_close_sums(linear.fc.weight.data.clone(), reference.fc.weight.data, terms=8, steps=5)

    def test_it_copies_no_weights(self, trained, batch, count_copies):
        executor, model = trained
        other = torch.optim.SGD(model.parameters(), lr=0.3)
        executor(*batch)
        copies = count_copies(executor)
        executor.setOptimizer(other)
        executor(*batch)
        assert copies.count == 0

    def test_an_unchanged_optimizer_moves_nothing(self, linear, batch, log):
        optimizer = poptorch.optim.SGD(linear.parameters(), lr=0.1)
        executor = poptorch.trainingModel(linear, optimizer=optimizer)
        executor(*batch)
        assert "Updating group 0 optimizer" in log.text
        log.clear()
        executor.setOptimizer(optimizer)
        executor(*batch)
        assert "Updating group" not in log.text
        assert "Writing" not in log.text
        optimizer.param_groups[0]["lr"] = 0.2
        executor.setOptimizer(optimizer)
        assert "Updating group 0 optimizer" in log.text

    def test_constant_attributes_cannot_change(self, linear, batch):
        optimizer = poptorch.optim.SGD(linear.parameters(), lr=0.1)
        optimizer.variable_attrs.markAsConstant("lr")
        executor = poptorch.trainingModel(linear, optimizer=optimizer)
        executor(*batch)
        optimizer.param_groups[0]["lr"] = 0.5
        with pytest.raises(poptorch.Error, match="New optimizer is not a valid replacement"):
            executor.setOptimizer(optimizer)
        optimizer.param_groups[0]["lr"] = 0.1
        executor.setOptimizer(optimizer)
        executor(*batch)

    def test_accumulation_type_is_fixed_by_compilation(self, linear, batch):
        executor = poptorch.trainingModel(linear, optimizer=poptorch.optim.Adam(linear.parameters(), lr=0.1))
        executor(*batch)
        half = poptorch.optim.Adam(linear.parameters(), lr=0.1, accum_type=torch.float16)
        with pytest.raises(ValueError, match="is already compiled"):
            executor.setOptimizer(half)
        executor(*batch)

    def test_inference_has_no_optimizer(self, linear):
        executor = poptorch.inferenceModel(linear)
        with pytest.raises(poptorch.Error, match="needs a training model"):
            executor.setOptimizer(torch.optim.SGD(linear.parameters(), lr=0.1))

    def test_unexpected_attributes_are_mentioned_once(self, linear, batch, log):
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
        executor = poptorch.trainingModel(linear, optimizer=optimizer)
        executor(*batch)
        optimizer.surprise = 1
        optimizer.param_groups[0]["odd"] = 1
        for _ in range(2):
            executor.setOptimizer(optimizer)
        warned = [
            r.getMessage()
            for r in log.records
            if r.levelno == logging.WARNING and "Ignoring unexpected" in r.getMessage()
        ]
        assert len(warned) == 2
        assert any("odd" in message for message in warned)
        assert any("surprise" in message for message in warned)


class TestState:
    def make(self, model, **kwargs):
        return poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=False, **kwargs)

    def test_life_of_the_state(self, linear, batch, log):
        optimizer = self.make(linear)
        executor = poptorch.trainingModel(linear, optimizer=optimizer)
        before = optimizer.state_dict()
        assert before["ipu_state"] is None
        assert before["ipu_param"] is None
        assert "param_groups" in before
        executor(*batch)
        log.clear()
        first = optimizer.state_dict()
        assert STATE_DOWN in log.text
        assert first["ipu_state"]
        assert all(isinstance(v, torch.Tensor) for v in first["ipu_state"].values())
        log.clear()
        optimizer.state_dict()
        assert STATE_DOWN not in log.text
        assert "Using cached optimiser state dict" in log.text
        executor(*batch)
        second = optimizer.state_dict()
        assert any(not torch.equal(second["ipu_state"][k], v) for k, v in first["ipu_state"].items())

    def test_loading_continues_where_the_state_was_taken(self, linear, batch, log):
        optimizer = self.make(linear)
        executor = poptorch.trainingModel(linear, optimizer=optimizer)
        for _ in range(3):
            executor(*batch)
        state, values = copy.deepcopy(optimizer.state_dict()), weights(linear)
        expected = [executor(*batch)[1].item() for _ in range(3)]
        log.clear()
        executor.load_state_dict(values)
        optimizer.load_state_dict(state)
        assert STATE_UP not in log.text
        assert [executor(*batch)[1].item() for _ in range(3)] == expected
        assert log.text.count(STATE_UP) == 1

    def test_trained_weights_survive_a_state_upload(self, linear, batch):
        optimizer = self.make(linear)
        executor = poptorch.trainingModel(linear, optimizer=optimizer)
        executor(*batch)
        state = optimizer.state_dict()
        reference = copy.deepcopy(linear)
        executor(*batch)
        optimizer.load_state_dict(state)
        executor(*batch)
        assert not torch.equal(reference.fc.weight, linear.fc.weight)

    def test_foreign_states_are_refused(self, linear, batch):
        optimizer = self.make(linear)
        executor = poptorch.trainingModel(linear, optimizer=optimizer)
        executor(*batch)
        with pytest.raises(RuntimeError, match="Only IPU optimizer states can be loaded onto the IPU"):
            optimizer.load_state_dict(torch.optim.SGD(linear.parameters(), lr=0.1).state_dict())
        with pytest.raises(RuntimeError, match="because it is empty"):
            optimizer.set_state_dict({})
        executor(*batch)

    def test_another_optimizer_takes_over(self, linear, batch, log):
        first, second = self.make(linear), self.make(linear)
        executor = poptorch.trainingModel(linear, optimizer=first)
        executor(*batch)
        log.clear()
        executor.setOptimizer(second)
        assert STATE_DOWN in log.text
        kept = copy.deepcopy(first.state_dict())
        executor(*batch)
        for name, value in first.state_dict()["ipu_state"].items():
            assert torch.equal(value, kept["ipu_state"][name])
        assert second.state_dict()["ipu_state"]
        log.clear()
        executor.setOptimizer(first)
        executor(*batch)
        assert STATE_UP in log.text

    def test_native_state_never_moves(self, linear, batch, log):
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.1, momentum=0.9)
        executor = poptorch.trainingModel(linear, optimizer=optimizer)
        executor(*batch)
        executor.detachFromDevice()
        executor.attachToDevice()
        assert "optimiser state" not in log.text
        assert optimizer.state_dict()["state"] == {}

    @pytest.mark.parametrize("native", [True, False])
    def test_detach_and_attach_do_not_disturb_training(self, linear, batch, native):
        def run(model, interrupt):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if native else self.make(model)
            executor = poptorch.trainingModel(model, optimizer=optimizer)
            losses = []
            for _ in range(4):
                losses.append(executor(*batch)[1].item())
                if interrupt:
                    executor.detachFromDevice()
            return losses

        assert run(copy.deepcopy(linear), True) == run(linear, False)

    def test_destroy_leaves_the_state_with_the_optimizer(self, linear, batch):
        optimizer = self.make(linear)
        executor = poptorch.trainingModel(linear, optimizer=optimizer)
        executor(*batch)
        expected = copy.deepcopy(optimizer.state_dict()["ipu_state"])
        executor(*batch)
        executor.destroy()
        state = optimizer.state_dict()["ipu_state"]
        assert set(state) == set(expected)
        assert any(not torch.equal(state[k], v) for k, v in expected.items())

    def test_offline_targets_have_no_state(self, linear, batch):
        optimizer = self.make(linear)
        executor = poptorch.trainingModel(linear, poptorch.Options().useOfflineIpuTarget(), optimizer)
        executor.compile(*batch)
        assert optimizer.state_dict()["ipu_state"] is None

    def test_rewrap_with_the_same_optimizer_goes_on(self, linear, batch):
        whole = copy.deepcopy(linear)
        one = poptorch.trainingModel(whole, optimizer=self.make(whole))
        expected = [one(*batch)[1].item() for _ in range(6)]
        optimizer = self.make(linear)
        losses = []
        for _ in range(2):
            executor = poptorch.trainingModel(linear, optimizer=optimizer)
            losses += [executor(*batch)[1].item() for _ in range(3)]
            executor.destroy()
        assert_close_sums(losses, expected, terms=8, steps=6)


def test_parameters_without_gradient_are_left_alone(batch):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x, t):
            return nn.functional.mse_loss(self.used(x), t)

    model = Model()
    before = weights(model)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(*batch)
    assert torch.equal(model.unused.weight, before["unused.weight"])
    assert not torch.equal(model.used.weight, before["used.weight"])
    optimizer.state_dict()
    executor.setOptimizer(optimizer)
    executor(*batch)
