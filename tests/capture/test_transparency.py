"""Capture understands what torch models are made of, and leaves the user's model as it was."""

from __future__ import annotations

import copy
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import poptorch
from closeness import assert_close_sums


class Square(torch.autograd.Function):
    """A function with a gradient of its own: three times the right one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 6 * x


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.fc1, self.fc2 = nn.Linear(3, 4), nn.Linear(4, 3)

    def body(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))

    def forward(self, x):
        y = self.body(x)
        return y, nn.functional.mse_loss(y, x)


class WithFunction(Base):
    def body(self, x):
        return self.fc2(Square.apply(self.fc1(x)))


class WithCheckpoint(Base):
    def body(self, x):
        return self.fc2(checkpoint(lambda t: torch.tanh(self.fc1(t)), x, use_reentrant=False))


class WithReentrantCheckpoint(Base):
    def body(self, x):
        return self.fc2(checkpoint(lambda t: torch.tanh(t), self.fc1(x), use_reentrant=True))


class Tied(Base):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(3, 3)
        self.fc2 = self.fc1


class TiedWeight(Base):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 3), nn.Linear(3, 3)
        self.fc2.weight = self.fc1.weight


class Detached(Base):
    def body(self, x):
        hidden = self.fc1(x)
        return self.fc2(hidden - hidden.detach() + hidden * 0.5)


class NoGradPart(Base):
    def body(self, x):
        with torch.no_grad():
            scale = self.fc1(x).abs().mean()
        return self.fc2(self.fc1(x)) * scale


class InPlace(Base):
    def body(self, x):
        hidden = self.fc1(x)
        hidden[:, 0] += 1
        hidden.view(-1)[::2].mul_(2)
        return self.fc2(hidden.relu_())


class WeightNorm(Base):
    def __init__(self):
        super().__init__()
        self.fc1 = parametrizations.weight_norm(self.fc1)


class Orthogonal(Base):
    def __init__(self):
        super().__init__()
        self.fc1 = parametrizations.orthogonal(self.fc1)


class Symmetric(nn.Module):
    def forward(self, value):
        return value.triu() + value.triu(1).T


class OwnParametrization(Base):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 3), nn.Linear(3, 3)
        parametrize.register_parametrization(self.fc2, "weight", Symmetric())


class Hooked(Base):
    def __init__(self):
        super().__init__()
        self.fc1.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        self.fc1.register_forward_hook(lambda m, args, output: output + 1)
        self.register_forward_hook(lambda m, args, output: (output[0] * 3, output[1]))


class GradientHooked(Base):
    def body(self, x):
        hidden = self.fc1(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda g: g * 0.5)
        return self.fc2(hidden)


class FunctionalCall(Base):
    def body(self, x):
        doubled = {"weight": self.fc1.weight * 2, "bias": self.fc1.bias}
        return self.fc2(torch.func.functional_call(self.fc1, doubled, (x,)))


class InnerGradient(Base):
    """Differentiates inside forward, as energy models and gradient penalties do."""

    def body(self, x):
        with torch.enable_grad():
            point = x.detach().requires_grad_(True)
            energy = self.fc1(point).pow(2).sum()
            (slope,) = torch.autograd.grad(energy, point, create_graph=True)
        return self.fc2(self.fc1(x)) + slope


class Partly(Base):
    def __init__(self):
        super().__init__()
        self.fc1.weight.requires_grad_(False)


class Lists(Base):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.extra = nn.ParameterDict({"scale": nn.Parameter(torch.ones(3))})

    def body(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.fc2(self.fc1(x * self.extra["scale"]))


class CustomLoss(Base):
    def forward(self, x):
        y = self.body(x)
        return y, poptorch.identity_loss((y - x).abs().pow(1.5).sum(-1).mean(), reduction="none")


MODELS = [
    Base, WithFunction, WithCheckpoint, WithReentrantCheckpoint, Tied, TiedWeight, Detached, NoGradPart, InPlace,
    WeightNorm, Orthogonal, OwnParametrization, Hooked, GradientHooked, FunctionalCall, InnerGradient, Partly, Lists,
    CustomLoss,
]  # fmt: skip


def snapshot(model):
    """Everything about a model that capture could disturb."""
    return {
        "state": {k: v.detach().clone() for k, v in model.state_dict().items()},
        "objects": {k: id(v) for k, v in [*model.named_parameters(), *model.named_buffers()]},
        "needs grad": {k: v.requires_grad for k, v in model.named_parameters()},
        "grads": {k: None if v.grad is None else v.grad.clone() for k, v in model.named_parameters()},
        "flags": {k: m.training for k, m in model.named_modules()},
        "names": {k: sorted(vars(m)) for k, m in model.named_modules()},
        "hooks": {k: (len(m._forward_hooks), len(m._forward_pre_hooks)) for k, m in model.named_modules()},
        "random": torch.random.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
    }


def assert_untouched(model, before):
    after = snapshot(model)
    for key in ("state", "grads"):
        for name, value in before[key].items():
            now = after[key][name]
            assert (now is None and value is None) or torch.equal(now, value), f"{key} of {name}"
    assert torch.equal(after.pop("random"), before.pop("random"))
    for key in ("objects", "needs grad", "flags", "names", "hooks", "grad mode"):
        assert after[key] == before[key], key


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("kind", MODELS)
def test_training_and_inference_as_in_eager(kind):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    model = kind()
    reference = copy.deepcopy(model)
    expected = [t.detach() for t in reference(x)]
    before = snapshot(model)
    inference = poptorch.inferenceModel(model)
    for got, wanted in zip(inference(x), expected, strict=True):
        assert_close_sums(got, wanted, terms=x.numel())
    assert_untouched(model, before)
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(1, 4):
        result = training(x)
        optimizer.zero_grad()
        expected = reference(x)
        expected[1].backward()
        optimizer.step()
        for got, wanted in zip(result, expected, strict=True):
            assert_close_sums(got, wanted.detach(), terms=x.numel(), steps=step)
    training.destroy()
    assert_close_sums(dict(model.state_dict()), dict(reference.state_dict()), terms=x.numel(), steps=step)


@pytest.mark.parametrize("wrapper", [poptorch.trainingModel, poptorch.inferenceModel])
@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("grads", [False, True])
def test_compile_leaves_everything_alone(wrapper, real, grads):
    class Busy(nn.Module):
        """Changes whatever it can reach."""

        def __init__(self):
            super().__init__()
            self.fc, self.bn, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5).eval()
            self.register_buffer("count", torch.zeros(1))
            self.lstm = nn.LSTM(3, 3)

        def forward(self, x, tally):
            self.count += 1
            tally += 1
            with torch.no_grad():
                self.fc.weight.mul_(0.5)
            y = self.lstm(self.drop(self.bn(self.fc(x))))[0] + torch.rand_like(x)
            if real and float(y.sum()) > 1e6:
                y = y * 2
            return nn.functional.mse_loss(y, x)

    model = Busy()
    if grads:
        model(torch.randn(4, 3), torch.zeros(1)).backward()
    x, tally = torch.randn(4, 3), torch.zeros(1)
    executor = wrapper(model)
    before = snapshot(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        executor.compile(x, tally)
    assert_untouched(model, before)
    assert not tally.any()


def test_forward_runs_exactly_once():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))
            self.calls = []

        def forward(self, x):
            self.calls.append(1)
            return poptorch.identity_loss((self.w * x).sum(), reduction="none")

    model = Model()
    poptorch.trainingModel(model)(torch.ones(1))
    assert len(model.calls) == 1


def test_two_threads_capture_at_once():
    results, problems = {}, []
    models = [Base() for _ in range(3)]  # made here: threads would share torch's generator

    def work(number):
        try:
            executor = poptorch.inferenceModel(models[number])
            results[number] = [executor(torch.full((2, 3), float(number)))[0] for _ in range(3)]
        except Exception as problem:  # noqa: BLE001 - reported below
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
    for number, outputs in results.items():
        for output in outputs:
            assert_close_sums(output, models[number](torch.full((2, 3), float(number)))[0].detach(), terms=3)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_uses_micro_batches_and_updates_statistics(training):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm1d(3)

        def forward(self, x):
            y = self.bn(x)
            return y, poptorch.identity_loss(y.pow(2).mean(), reduction="none")

    model = Norm().train(training)
    reference = copy.deepcopy(model)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
    options = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.0))
    y, _ = executor(x)
    expected = torch.cat([reference(x[:3])[0], reference(x[3:])[0]]).detach()
    assert_close_sums(y, expected, terms=3)
    for name, value in reference.named_buffers():
        assert_close_sums(model.get_buffer(name).clone().to(value.dtype), value, terms=3, steps=2)
    inference = poptorch.inferenceModel(model)
    inference(x)
