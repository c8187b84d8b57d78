"""Host and device are two copies of the weights: what moves, when, and how often (spec: executor §9)."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums


def test_training_calls_never_download_and_the_first_look_downloads_once(linear, batch, count_copies):
    executor = poptorch.trainingModel(linear)
    executor(*batch)
    copies = count_copies(executor)
    for _ in range(100):
        executor(*batch)
    assert copies.count == 0
    before = linear.fc.weight.clone()
    assert copies.count == 1
    for _ in range(3):
        assert torch.equal(linear.fc.weight, before)
        str(linear.fc.bias)
        list(linear.parameters())
        linear.state_dict()
    assert copies.count == 1


LOOKS = {
    "parameters": lambda m: list(m.parameters()),
    "named_parameters": lambda m: list(m.named_parameters()),
    "buffers": lambda m: list(m.buffers()),
    "state_dict": lambda m: m.state_dict(),
    "call": lambda m: m(torch.zeros(1, 3)),
    "layer call": lambda m: m.fc(torch.zeros(1, 3)),
    "attribute": lambda m: m.fc.weight.data,
    "shape": lambda m: m.fc.weight.shape,
    "str": lambda m: str(m.fc.weight),
    "function, first operand": lambda m: torch.equal(m.fc.weight, torch.zeros(2, 3)),
    "function, second operand": lambda m: torch.equal(torch.zeros(2, 3), m.fc.weight),
    "pickle": lambda m: pickle.dumps(m.fc.weight),
    "copy": lambda m: copy.copy(m),
    "deepcopy": lambda m: copy.deepcopy(m),
    "torch.save": lambda m: torch.save(m.state_dict(), io.BytesIO()),
}


@pytest.mark.parametrize("look", LOOKS)
def test_each_way_to_look_at_weights_fetches_them(trained, count_copies, look):
    executor, model = trained
    copies = count_copies(executor)
    LOOKS[look](model)
    assert copies.count == 1


def test_training_results_equal_eager_sgd(linear, batch):
    reference = copy.deepcopy(linear)
    executor = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(5):
        _, loss = executor(*batch)
        optimizer.zero_grad()
        _, expected = reference(*batch)
        expected.backward()
        optimizer.step()
        assert_close_sums(loss, expected.detach(), terms=8, steps=5)
    assert_close_sums(linear.fc.weight.data, reference.fc.weight.data, terms=8, steps=5)


def test_host_changes_need_an_explicit_copy(linear, batch):
    executor = poptorch.inferenceModel(linear)
    first = executor(batch[0])
    with torch.no_grad():
        linear.fc.weight.zero_()
        linear.fc.bias.zero_()
    assert torch.equal(executor(batch[0]), first)
    executor.copyWeightsToDevice()
    assert not executor(batch[0]).any()


def test_copy_to_device_discards_training(linear, batch):
    executor = poptorch.trainingModel(linear)
    before = {k: v.clone() for k, v in linear.state_dict().items()}
    executor(*batch)
    executor.copyWeightsToDevice()
    for name, value in linear.state_dict().items():
        assert torch.equal(value, before[name])


def test_load_state_dict_uploads_when_attached(linear, batch):
    executor = poptorch.inferenceModel(linear)
    executor(batch[0])
    zeros = {k: torch.zeros_like(v) for k, v in linear.state_dict().items()}
    result = executor.load_state_dict(zeros)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert not executor(batch[0]).any()


def test_train_then_infer_copies_once_each(linear, batch, count_copies):
    training = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.1))
    inference = poptorch.inferenceModel(linear)
    training(*batch)
    copies = count_copies(training)
    reference = None
    for _ in range(3):
        training(*batch)
        output = inference(batch[0])
        downloads = copies.count
        assert torch.equal(inference(batch[0]), output)
        assert copies.count == downloads
        assert reference is None or not torch.equal(output, reference)
        reference = output
    assert copies.count == 3
    assert_close_sums(reference, linear(batch[0]).detach(), terms=4)


def test_inference_made_before_training_follows_too(linear, batch):
    inference = poptorch.inferenceModel(linear)
    before = inference(batch[0])
    training = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.5))
    training(*batch)
    after = inference(batch[0])
    assert not torch.equal(before, after)
    assert_close_sums(after, linear(batch[0]).detach(), terms=4)


def test_inference_goes_on_after_the_training_executor_is_destroyed(linear, batch):
    training = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.5))
    inference = poptorch.inferenceModel(training)
    training(*batch)
    expected = inference(batch[0])
    training.destroy()
    assert torch.equal(inference(batch[0]), expected)


def test_dropping_a_training_executor_keeps_what_it_learned(linear, batch):
    before = linear.fc.weight.clone()
    executor = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.5))
    executor(*batch)
    del executor
    assert not torch.equal(linear.fc.weight, before)
    linear.destroy()
    assert type(linear).__name__ == "LinearWithLoss"


def test_scalar_parameters_are_synchronised(batch):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return poptorch.identity_loss((self.factor * x).sum(), reduction="none")

    model = Scale()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    executor(torch.ones(3))
    assert model.factor.item() == pytest.approx(1.7)


def test_tied_parameters_stay_tied_over_attach_and_detach(batch):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return poptorch.identity_loss(self.b(self.a(x)).pow(2).mean(), reduction="none")

    model = Tied()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    losses = []
    for _ in range(5):
        losses.append(executor(batch[0]).item())
        executor.detachFromDevice()
        executor.attachToDevice()
    assert losses == sorted(set(losses), reverse=True)
    state = model.state_dict()
    assert state["a.weight"].data_ptr() == state["b.weight"].data_ptr()


class TestInstrumentation:
    def test_classes_change_and_come_back(self, linear, batch):
        original = type(linear)
        executor = poptorch.trainingModel(linear)
        assert type(linear).__name__ == "PoptorchLinearWithLoss"
        assert isinstance(linear, original)
        assert isinstance(linear.fc.weight, nn.Parameter)
        executor(*batch)
        executor.destroy()
        assert type(linear) is original
        assert type(linear.fc.weight) is nn.Parameter

    def test_state_dict_has_only_plain_tensors(self, trained):
        _, model = trained
        for keep in (False, True):
            for value in model.state_dict(keep_vars=keep).values():
                assert type(value) in (torch.Tensor, nn.Parameter)

    def test_saved_model_is_an_ordinary_model(self, trained):
        executor, model = trained
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert type(loaded).__name__ == "LinearWithLoss"
        assert type(loaded.fc.weight) is nn.Parameter
        assert torch.equal(loaded.fc.weight, model.fc.weight)
        assert executor.isCompiled()

    def test_copy_keeps_the_class_and_deepcopy_is_plain(self, trained):
        _, model = trained
        assert type(copy.copy(model)) is type(model)
        assert type(copy.deepcopy(model)).__name__ == "LinearWithLoss"

    def test_destroy_before_compile_unwraps(self, linear):
        poptorch.trainingModel(linear).destroy()
        assert type(linear).__name__ == "LinearWithLoss"
        poptorch.trainingModel(linear)

    def test_the_model_can_destroy_and_copy(self, trained):
        executor, model = trained
        assert model.copyWeightsToHostIfNeeded() is True
        assert model.copyWeightsToHostIfNeeded() is False
        model.destroy()
        assert not executor.isCompiled()
        with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed"):
            executor.copyWeightsToHost()

    def test_second_wrap_is_refused_until_destroyed(self, linear, batch):
        executor = poptorch.trainingModel(linear)
        with pytest.raises(RuntimeError, match="Model has already been wrapped in"):
            poptorch.trainingModel(linear)
        with pytest.raises(RuntimeError, match=r"Call model.destroy\(\)"):
            poptorch.trainingModel(executor)
        executor(*batch)
        executor.destroy()
        poptorch.trainingModel(executor)(*batch)

    def test_two_halves_with_a_rewrap_equal_one_training(self, linear, batch):
        whole = copy.deepcopy(linear)
        one = poptorch.trainingModel(whole, optimizer=torch.optim.SGD(whole.parameters(), lr=0.1))
        for _ in range(6):
            one(*batch)
        for _ in range(2):
            half = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.1))
            for _ in range(3):
                half(*batch)
            half.destroy()
        assert_close_sums(linear.fc.weight.data, whole.fc.weight.data.clone(), terms=8, steps=8)

    def test_buffers_must_be_plain_tensors(self, linear):
        linear.register_buffer("odd", nn.Parameter(torch.ones(1)))
        with pytest.raises(poptorch.Error, match="All buffers must be an instance"):
            poptorch.trainingModel(linear)

    def test_rewrap_of_a_model_with_buffers(self, batch):
        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.bn = nn.BatchNorm1d(3)

            def forward(self, x):
                return poptorch.identity_loss(self.bn(x).pow(2).mean(), reduction="none")

        model = Norm()
        for _ in range(2):
            executor = poptorch.trainingModel(model)
            executor(batch[0])
            assert model.bn.running_mean.abs().sum() > 0
            executor.destroy()
            assert type(model.bn.running_mean) is torch.Tensor


class TestBuffers:
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.ones(1))
            self.plain = torch.ones(1)

        def forward(self, x):
            self.count += 1
            self.plain += 1
            return self.count + 0 * x.sum(), self.plain + 0 * x.sum()

    def test_buffers_persist_and_plain_attributes_do_not(self):
        model = self.Counter()
        executor = poptorch.inferenceModel(model)
        results = [tuple(v.item() for v in executor(torch.zeros(1))) for _ in range(3)]
        assert [r[0] for r in results] == [2, 3, 4]
        assert len({r[1] for r in results}) == 1
        assert model.count.item() == 1
        executor.copyWeightsToHost()
        assert model.count.item() == 4

    @pytest.mark.parametrize(("iterations", "accumulation"), [(1, 1), (3, 1), (1, 5), (3, 5)])
    def test_one_update_per_micro_batch(self, iterations, accumulation):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(1))
                self.register_buffer("count", torch.zeros(1))

            def forward(self, x):
                self.count += 1
                return poptorch.identity_loss((self.weight * x).sum(), reduction="none")

        options = poptorch.Options().deviceIterations(iterations)
        options.Training.gradientAccumulation(accumulation)
        model = Model()
        poptorch.trainingModel(model, options)(torch.ones(iterations * accumulation, 1))
        assert model.count.item() == iterations * accumulation

    def test_removed_and_reassigned_buffers(self):
        class Model(nn.Module):
            def __init__(self, action):
                super().__init__()
                self.register_buffer("y", torch.ones(2))
                self.action = action

            def forward(self, x):
                x = x + self.y
                if self.action == "remove":
                    del self.y
                else:
                    self.y = x
                return x

        for action, phrase in {
            "remove": "Buffer y is removed from the model when calling the forward method",
            "assign": "Buffer y is reassigned within the model when calling the forward method",
        }.items():
            model = Model(action)
            with pytest.raises(poptorch.Error, match=phrase):
                poptorch.inferenceModel(model)(torch.ones(2))
            assert torch.equal(model.y, torch.ones(2))

    def test_replicas_need_private_buffers(self):
        class Accumulate(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("total", torch.zeros(1, 2))

            def forward(self, x):
                self.total += x
                return self.total.clone()

        options = poptorch.Options().replicationFactor(2)
        with pytest.raises(poptorch.Error, match="PopTorch does not support broadcasting buffers") as error:
            poptorch.inferenceModel(Accumulate(), options)(torch.ones(2, 2))
        assert "poptorch.Options.broadcastBuffers(False)" in str(error.value)
        options = poptorch.Options().replicationFactor(2).broadcastBuffers(False)
        executor = poptorch.inferenceModel(Accumulate(), options)
        rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        for _ in range(50):
            output = executor(rows)
        assert torch.equal(output, rows * 50)

    def test_only_listed_buffers_are_refreshed(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("a", torch.ones(1))
                self.register_buffer("b", torch.ones(1))

            def forward(self, x):
                return x * self.a, x * self.b

        model = Model()
        executor = poptorch.inferenceModel(model, poptorch.Options().updatableNamedBuffers(["a"]))
        executor(torch.ones(1))
        model.a.fill_(5)
        model.b.fill_(5)
        executor.copyNamedBuffersToDevice()
        assert [v.item() for v in executor(torch.ones(1))] == [5, 1]

        other = poptorch.inferenceModel(Model())
        other(torch.ones(1))
        with pytest.raises(poptorch.Error, match="No named buffers marked as updatable"):
            other.copyNamedBuffersToDevice()
        with pytest.raises(poptorch.Error, match="nonsense"):
            poptorch.inferenceModel(Model(), poptorch.Options().updatableNamedBuffers(["nonsense"]))(torch.ones(1))


def test_frozen_parameters_keep_their_bits(batch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, x, t):
            return nn.functional.mse_loss(self.net(x), t)

    wrapped = WithLoss()
    before = copy.deepcopy(wrapped.state_dict())
    executor = poptorch.trainingModel(wrapped, optimizer=torch.optim.SGD(wrapped.parameters(), lr=0.1))
    executor(*batch)
    after = wrapped.state_dict()
    assert torch.equal(before["net.0.weight"], after["net.0.weight"])
    assert not torch.equal(before["net.1.weight"], after["net.1.weight"])


def test_parameters_outside_the_optimizer_do_not_move(linear, batch):
    before = linear.fc.bias.clone()
    executor = poptorch.trainingModel(linear, optimizer=torch.optim.SGD([linear.fc.weight], lr=0.5))
    executor(*batch)
    assert torch.equal(linear.fc.bias, before)
