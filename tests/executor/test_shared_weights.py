"""Several training executors around the same weights: each runs with the newest, whoever trained them."""

from __future__ import annotations

import copy
import gc
import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

import poptorch


class GeneratorStep(nn.Module):
    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def forward(self, noise):
        judged = self.discriminator(self.generator(noise))
        return poptorch.identity_loss(softplus(-judged).mean(), "none")


class DiscriminatorStep(GeneratorStep):
    def forward(self, real, noise):
        judged = softplus(-self.discriminator(real)).mean()
        return poptorch.identity_loss(
            judged + softplus(self.discriminator(self.generator(noise).detach())).mean(), "none"
        )


class Counting(nn.Module):
    """A layer whose buffer counts the calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


def networks():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    discriminator = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.1), Counting(), nn.Linear(8, 1))
    return generator, discriminator


def adam(parameters):
    parameters = list(parameters)
    wide = parameters[0].dtype is torch.float64
    return (torch.optim.Adam if wide else poptorch.optim.Adam)(parameters, lr=0.02)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def combined(parameters):
    parameters = list(parameters)
    if parameters[0].dtype is torch.float64:
        return momentum(parameters)
    return poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9, use_combined_accum=True)


class Eager:
    """The same training by torch, in float64."""

    def __init__(self, pair, optimizer):
        self.pair = [copy.deepcopy(one).double() for one in pair]
        self.optimizers = [optimizer(one.parameters()) for one in self.pair]

    def train(self, which, step, *inputs):
        self.optimizers[which].zero_grad()
        loss = step(*self.pair)(*(x.double() for x in inputs))
        loss.backward()
        self.optimizers[which].step()
        return loss.detach()

    def check(self, pair):
        for own, theirs in zip(pair, self.pair, strict=True):
            for name, value in own.state_dict().items():
                torch.testing.assert_close(value.double(), theirs.state_dict()[name], rtol=1e-4, atol=1e-5)


def batches(count):
    torch.manual_seed(1)
    return [(torch.randn(4, 2) + 2, torch.randn(4, 3)) for _ in range(count)]


@pytest.mark.parametrize("optimizer", [adam, combined])
@pytest.mark.parametrize("how", ["", "looks", "detaches", "copies", "samples", "validates early", "destroys"])
def test_a_gan_trains_as_by_torch(optimizer, how):
    pair = networks()
    eager = Eager(pair, optimizer)
    sample = poptorch.inferenceModel(pair[0])
    if how == "validates early":
        sample(torch.zeros(4, 3))
    optimizers = [optimizer(one.parameters()) for one in pair]
    train_g = poptorch.trainingModel(GeneratorStep(*pair), optimizer=optimizers[0])
    train_d = poptorch.trainingModel(DiscriminatorStep(*pair), optimizer=optimizers[1])
    for step, (real, noise) in enumerate(batches(6)):
        losses = [train_d(real, noise), train_g(noise)]
        wanted = [eager.train(1, DiscriminatorStep, real, noise), eager.train(0, GeneratorStep, noise)]
        for own, theirs in zip(losses, wanted, strict=True):
            torch.testing.assert_close(own.double(), theirs, rtol=1e-4, atol=1e-5)
        if how == "looks":
            eager.check(pair)
        if how == "copies":
            train_d.copyWeightsToHost()
            train_g.copyWeightsToDevice()
        if how == "detaches" and step % 2:
            train_d.detachFromDevice()
            train_g.detachFromDevice()
        if how in ("samples", "validates early"):
            torch.testing.assert_close(sample(noise).double(), eager.pair[0](noise.double()), rtol=1e-4, atol=1e-5)
        if how == "destroys" and step == 3:
            train_g.destroy()
            eager.check(pair)
            train_g = poptorch.trainingModel(GeneratorStep(*pair), optimizer=optimizers[0])
    eager.check(pair)


class Chain(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return poptorch.identity_loss(self.layers(x).pow(2).mean(), "none")


def test_three_that_share_in_part():
    torch.manual_seed(0)
    a, b, c, d = (nn.Linear(3, 3) for _ in range(4))
    models = [Chain(a, b), Chain(b, c), Chain(c, d, a)]
    references = copy.deepcopy(models)  # with the same sharing
    executors = [poptorch.trainingModel(m, optimizer=momentum(m.parameters())) for m in models]
    optimizers = [momentum(m.parameters()) for m in references]
    for step in (0, 0, 1, 2, 1, 0, 2, 2, 0, 1):
        x = torch.randn(4, 3)
        loss = executors[step](x)
        optimizers[step].zero_grad()
        wanted = references[step](x)
        wanted.backward()
        optimizers[step].step()
        torch.testing.assert_close(loss, wanted.detach(), rtol=1e-4, atol=1e-6)
    for own, theirs in zip(models, references, strict=True):
        for name, value in own.state_dict().items():
            torch.testing.assert_close(value, theirs.state_dict()[name], rtol=1e-4, atol=1e-6)


def counted(executor):
    """The copies to the host, in a list that grows."""
    copies, copy_to_host = [], executor.copyWeightsToHost

    def count():
        copies.append(1)
        copy_to_host()

    executor.copyWeightsToHost = count
    return copies


def test_copies_are_those_that_are_needed():
    layers = [nn.Linear(3, 3) for _ in range(3)]
    first, second = Chain(layers[0], layers[1]), Chain(layers[1], layers[2])
    one = poptorch.trainingModel(first, optimizer=momentum(first.parameters()))
    other = poptorch.trainingModel(second, optimizer=momentum(second.parameters()))
    of_one, of_other = counted(one), counted(other)
    for _ in range(3):
        one(torch.ones(2, 3))
    assert (len(of_one), len(of_other)) == (0, 0)
    for _ in range(3):
        other(torch.ones(2, 3))
    assert (len(of_one), len(of_other)) == (1, 0)
    assert layers[0].weight.isfinite().all()
    assert layers[2].weight.isfinite().all()
    assert (len(of_one), len(of_other)) == (1, 1)
    assert layers[1].weight.isfinite().all()
    one(torch.ones(2, 3))
    assert (len(of_one), len(of_other)) == (1, 1)


def test_what_is_loaded_through_one_counts_for_all():
    layer = nn.Linear(3, 3)
    first, second = Chain(layer), Chain(layer, nn.ReLU())
    one = poptorch.trainingModel(first, optimizer=momentum(first.parameters()))
    other = poptorch.trainingModel(second, optimizer=torch.optim.SGD(second.parameters(), lr=0.0))
    for executor in (one, other):
        executor(torch.ones(2, 3))
    one.load_state_dict({"layers.0.weight": torch.zeros(3, 3), "layers.0.bias": torch.full((3,), 2.0)})
    assert other(torch.ones(2, 3)) == 4.0


def test_one_that_is_gone_leaves_what_it_trained_and_who_watches():
    layer = nn.Linear(3, 3)
    first, second = Chain(layer), Chain(layer, nn.ReLU())
    one = poptorch.trainingModel(first, optimizer=momentum(first.parameters()))
    other = poptorch.trainingModel(second, optimizer=momentum(second.parameters()))
    other(torch.ones(2, 3))
    one(torch.ones(2, 3))
    del one
    gc.collect()
    trained = copy.deepcopy(second)
    torch.testing.assert_close(other(torch.ones(2, 3)), trained(torch.ones(2, 3)).detach())
    assert not torch.equal(layer.weight, trained.layers[0].weight)


def test_threads_take_turns():
    """Each needs the other's weights before each of its calls: with queues of their own they would wait for ever."""
    layer = nn.Linear(3, 3)
    executors = []
    for _ in range(2):
        model = Chain(layer, nn.Tanh())
        executors.append(poptorch.trainingModel(model, optimizer=momentum(model.parameters())))
        executors[-1].compile(torch.ones(2, 3))
    failures = []

    def train(executor):
        try:
            for _ in range(20):
                executor(torch.ones(2, 3))
                layer.weight.sum()
        except Exception as error:  # noqa: BLE001  (told by the test)
            failures.append(error)

    threads = [threading.Thread(target=train, args=(e,), daemon=True) for e in executors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


def test_buffers_that_another_executor_watches_may_be_shared():
    norm = nn.BatchNorm1d(3)
    first, second = Chain(norm), Chain(norm, nn.ReLU())
    one = poptorch.trainingModel(first, optimizer=momentum(first.parameters()))
    other = poptorch.trainingModel(second, optimizer=momentum(second.parameters()))
    for executor in (one, other, one):
        executor(torch.randn(4, 3))
    assert int(norm.num_batches_tracked) == 3


class Falling(nn.Module):
    """A weight and a buffer that fall with each step."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x):
        self.count += 1
        return poptorch.identity_loss((self.weight * x).sum(), "none")


def falling():
    model = Falling()
    return model, poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (lambda a, b: a.weight - b.weight, [0.0, 0.0]),
        (lambda a, b: torch.cat([a.weight, b.weight]), [0.5] * 4),
        (lambda a, b: torch.stack([b.weight, a.count]).flatten(), [0.5, 0.5, 1.0, 1.0]),
        (lambda a, b: torch._foreach_add([a.weight], [b.weight])[0], [1.0, 1.0]),
        (lambda a, b: torch.empty(2).copy_(b.count - a.count), [0.0, 0.0]),
        (lambda a, b: a.weight.detach().lerp_(b.weight.detach(), 0.5), [0.5, 0.5]),
    ],
)
def test_one_operation_on_weights_of_two_executors(look, expected):
    (first, trains_first), (second, trains_second) = falling(), falling()
    trains_first(torch.ones(1))
    trains_second(torch.ones(1))
    with torch.no_grad():
        assert look(first, second).tolist() == expected
