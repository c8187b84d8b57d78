"""Single statements of the specification that have no better home (executor §20)."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums


def test_text_of_weights_changes_with_training_only(linear, batch):
    inference = poptorch.inferenceModel(linear)
    before = str(linear.fc.weight)
    inference(batch[0])
    assert str(linear.fc.weight) == before
    poptorch.trainingModel(linear)(*batch)
    assert str(linear.fc.weight) != before


def test_first_run_uses_the_weights_of_that_moment(linear, batch):
    executor = poptorch.inferenceModel(linear)
    with torch.no_grad():
        linear.fc.weight.zero_()
        linear.fc.bias.fill_(3)
    assert executor(batch[0]).unique().tolist() == [3]


def test_training_on_the_host_needs_an_explicit_copy(linear, batch):
    executor = poptorch.inferenceModel(linear)
    before = executor(batch[0])
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.5)
    linear(*batch)[1].backward()
    optimizer.step()
    assert torch.equal(executor(batch[0]), before)
    executor.copyWeightsToDevice()
    assert_close_sums(executor(batch[0]), linear(batch[0]).detach(), terms=4)


def test_state_of_a_shared_model_has_no_types_of_ours(linear, batch):
    training = poptorch.trainingModel(linear)
    inference = poptorch.inferenceModel(training)
    training(*batch)
    inference(batch[0])
    for source in (training, inference, linear, inference.model):
        file = io.BytesIO()
        torch.save(source.state_dict(), file)
        assert b"poptorch" not in file.getvalue()
        assert all(type(value) is torch.Tensor for value in source.state_dict().values())


@pytest.mark.parametrize("replicas", [1, 2])
def test_integer_buffers_are_usable(replicas):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("index", torch.tensor([2, 0]))
            self.register_buffer("mask", torch.tensor([True, False, True]))

        def forward(self, x):
            return x[:, self.index], x * self.mask

    options = poptorch.Options().replicationFactor(replicas)
    x = torch.arange(6.0).view(2, 3)
    first, second = poptorch.inferenceModel(Model(), options)(x)
    assert torch.equal(first, x[:, [2, 0]])
    assert second.tolist() == [[0, 0, 2], [3, 0, 5]]


def test_training_then_inference_of_one_batch_norm_model(batch):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm1d(3)

        def forward(self, x):
            y = self.bn(x)
            return y, poptorch.identity_loss(y.pow(2).mean(), reduction="none")

    model = Norm()
    training = poptorch.trainingModel(model)
    training.compile(batch[0])
    training(batch[0])
    model.eval()
    inference = poptorch.inferenceModel(model)
    inference.compile(batch[0])
    assert_close_sums(inference(batch[0])[0], model(batch[0])[0].detach(), terms=4, steps=2)


@pytest.mark.parametrize(("iterations", "accumulation"), [(1, 1), (3, 1), (1, 5), (3, 5)])
def test_a_buffer_updated_from_a_parameter_follows_it(iterations, accumulation):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([2.0]))
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen += self.w.detach()
            return poptorch.identity_loss((self.w * x).sum(), reduction="none")

    options = poptorch.Options().deviceIterations(iterations)
    options.Training.gradientAccumulation(accumulation)
    model, reference = Model(), Model()
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    executor(torch.ones(iterations * accumulation, 1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(iterations):
        optimizer.zero_grad()
        for _ in range(accumulation):
            (reference(torch.ones(1, 1)) / accumulation).backward()
        optimizer.step()
    assert_close_sums(model.seen.clone(), reference.seen, terms=15, steps=3)
    assert_close_sums(model.w.detach().clone(), reference.w.detach(), terms=15, steps=3)


def test_half_models_keep_their_type(batch):
    model = nn.Linear(3, 2).half()
    model.register_buffer("b", torch.ones(2).half())
    result = poptorch.inferenceModel(model)(batch[0].half())
    assert result.dtype is torch.float16
    assert_close_sums(result.float(), model.float()(batch[0]).detach(), terms=1, dtype=torch.float16, steps=2)


def test_explicit_destroy_frees_the_device_for_another():
    options = poptorch.Options().useIpuId(62)
    first = poptorch.inferenceModel(nn.ReLU(), options)
    first(torch.ones(1))
    first.destroy()
    assert poptorch.inferenceModel(nn.ReLU(), options)(torch.ones(1)).item() == 1
    for copy in (first.copyWeightsToHost, first.copyWeightsToDevice):
        with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed"):
            copy()
