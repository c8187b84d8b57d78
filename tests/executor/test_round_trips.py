"""Trained values survive what libraries do with a wrapped model: unwrap and rewrap it, copy it, save it, look at it."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import poptorch
from poptorch.executor.wrapping import rewrap_model, unwrap_model
from poptorch.profiling.trace import Recorder, SpanKind


class Normed(nn.Module):
    """Parameters, one of them tied, and buffers that training changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.fc, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
        self.tied = self.fc.weight

    def forward(self, x, target=None):
        y = self.norm(self.fc(x))
        return y if target is None else (y, nn.functional.mse_loss(y, target))


def train(model, batch, calls):
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    return executor, [executor(*batch)[1].item() for _ in range(calls)]


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class TestUnwrapping:
    def test_generate_with_the_plain_module_and_train_on(self, batch):
        reference = Normed()
        _, expected = train(reference, batch, 6)
        model = Normed()
        executor, losses = train(model, batch, 3)
        before = model.fc.weight.detach().clone()
        losses.append(executor(*batch)[1].item())
        unwrap_model(model)
        assert type(model) is Normed
        assert {type(p) for p in model.parameters()} == {nn.Parameter}
        assert {type(b) for b in model.buffers()} == {torch.Tensor}
        assert not torch.equal(model.fc.weight, before)
        plain = copy.deepcopy(model).eval()
        assert plain(batch[0]).shape == (4, 2)
        rewrap_model(model)
        assert type(model).__name__ == "PoptorchNormed"
        losses += [executor(*batch)[1].item() for _ in range(2)]
        assert losses == expected
        assert same(values(model), values(reference))

    def test_training_while_unwrapped_is_seen_after_rewrapping(self, linear, batch):
        executor, _ = train(linear, batch, 1)
        unwrap_model(linear)
        stale = linear.fc.weight.detach().clone()
        executor(*batch)
        assert torch.equal(linear.fc.weight, stale)
        rewrap_model(linear)
        assert not torch.equal(linear.fc.weight, stale)

    def test_inference_follows_again_after_rewrapping(self, linear, batch):
        executor, _ = train(linear, batch, 1)
        inference = poptorch.inferenceModel(linear)
        first = inference(batch[0])
        unwrap_model(linear)
        rewrap_model(linear)
        executor(*batch)
        assert not torch.equal(inference(batch[0]), first)

    def test_models_that_are_not_wrapped_stay_as_they_are(self, linear, batch):
        original = type(linear)
        for function in (unwrap_model, rewrap_model, rewrap_model):
            function(linear)
            assert type(linear) is original
        executor, _ = train(linear, batch, 1)
        rewrap_model(linear)
        assert type(linear).__name__ == "PoptorchLinearWithLoss"
        unwrap_model(executor)
        unwrap_model(linear)
        assert type(linear) is original
        rewrap_model(executor)
        assert type(linear).__name__ == "PoptorchLinearWithLoss"

    def test_destroy_while_unwrapped(self, linear, batch):
        executor, _ = train(linear, batch, 1)
        unwrap_model(linear)
        executor.destroy()
        rewrap_model(linear)
        assert type(linear).__name__ == "LinearWithLoss"
        poptorch.trainingModel(linear)(*batch)

    def test_an_executor_that_is_gone(self, linear, batch):
        executor, _ = train(linear, batch, 1)
        unwrap_model(linear)
        del executor
        rewrap_model(linear)
        assert type(linear).__name__ == "LinearWithLoss"


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, saved, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_have_the_trained_values_and_are_plain(batch, duplicate):
    model = Normed()
    start = values(model)
    executor, _ = train(model, batch, 2)
    twin = duplicate(model)
    assert type(twin) is Normed
    assert {type(t) for t in (*twin.parameters(), *twin.buffers())} == {nn.Parameter, torch.Tensor}
    assert twin.tied is twin.fc.weight
    assert not same(values(twin), start)
    assert same(values(twin), values(model))
    child = duplicate(model.norm)
    assert type(child) is nn.BatchNorm1d
    assert torch.equal(child.running_mean, model.norm.running_mean)
    executor(*batch)
    assert not same(values(twin), values(model))
    poptorch.trainingModel(twin)(*batch)


class TestLooksInCallbacks:
    """A look at weights after each step costs one copy of them, whatever is looked at and how often."""

    @staticmethod
    def copies(executor):
        return [span.kind for span in executor.trace.spans if span.kind is SpanKind.WEIGHTS_TO_HOST]

    def test_one_copy_for_each_step_and_no_new_memory(self, batch):
        model = Normed()
        executor, _ = train(model, batch, 1)
        places = [p.untyped_storage().data_ptr() for p in model.parameters()]
        executor.trace = Recorder()
        for step in range(1, 9):
            executor(*batch)
            for _ in range(2):
                for parameter in model.parameters():
                    parameter.norm()
                model.state_dict()
                float(model.norm.running_mean.sum())
            assert len(self.copies(executor)) == step
            assert [p.untyped_storage().data_ptr() for p in model.parameters()] == places

    def test_no_copy_without_a_look(self, batch):
        model = Normed()
        executor, _ = train(model, batch, 1)
        executor.trace = Recorder()
        for _ in range(5):
            executor(*batch)
            executor.getPerfCounters()
            _ = model.fc, executor.model, executor.isCompiled()
        assert self.copies(executor) == []
        executor.copyWeightsToDevice()
        kinds = [span.kind for span in executor.trace.spans]
        assert kinds.count(SpanKind.WEIGHTS_TO_DEVICE) == 1
