"""Random samplers (section 3.3): distributions, seeds, and which draws are equal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from op_samples import Alone, normal
from torch import Tensor, distributions, nn
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums

COUNT = 20_000
LIKE = torch.zeros(COUNT)


@dataclass(frozen=True)
class Expected:
    """What a sample must look like."""

    draw: Callable[[Tensor], Tensor]
    mean: float
    std: float
    low: float = -math.inf
    high: float = math.inf
    dtype: torch.dtype = torch.float32


ROOT12 = math.sqrt(12)
SAMPLERS = {
    "rand": Expected(lambda x: torch.rand(COUNT), 0.5, 1 / ROOT12, 0, 1),
    "rand_like": Expected(torch.rand_like, 0.5, 1 / ROOT12, 0, 1),
    "rand half": Expected(lambda x: torch.rand(COUNT, dtype=torch.float16), 0.5, 1 / ROOT12, 0, 1, torch.float16),
    "randn": Expected(lambda x: torch.randn(COUNT), 0, 1),
    "randn_like": Expected(torch.randn_like, 0, 1),
    "normal floats": Expected(lambda x: torch.normal(2.0, 3.0, (COUNT,)), 2, 3),
    "normal mean tensor": Expected(lambda x: torch.normal(x + 2, 3.0), 2, 3),
    "normal std tensor": Expected(lambda x: torch.normal(2.0, x + 3), 2, 3),
    "normal tensors": Expected(lambda x: torch.normal(x + 2, x + 3), 2, 3),
    "normal_": Expected(lambda x: torch.empty_like(x).normal_(mean=-1, std=2), -1, 2),
    "normal_ half": Expected(lambda x: x.half().normal_(), 0, 1, dtype=torch.float16),
    "uniform_": Expected(lambda x: torch.empty_like(x).uniform_(-1, 3), 1, 4 / ROOT12, -1, 3),
    "exponential_": Expected(lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.5, 0),
    "bernoulli": Expected(lambda x: torch.bernoulli(x + 0.3), 0.3, math.sqrt(0.21), 0, 1),
    "bernoulli p": Expected(lambda x: torch.bernoulli(x, 0.3), 0.3, math.sqrt(0.21), 0, 1),
    "bernoulli_": Expected(lambda x: torch.empty_like(x).bernoulli_(0.3), 0.3, math.sqrt(0.21), 0, 1),
    "bernoulli_ tensor": Expected(lambda x: torch.empty_like(x).bernoulli_(x + 0.3), 0.3, math.sqrt(0.21), 0, 1),
    "randint": Expected(lambda x: torch.randint(2, 8, (COUNT,)), 4.5, math.sqrt(35 / 12), 2, 7, torch.int32),
    "randint_like": Expected(lambda x: torch.randint_like(x, 8), 3.5, math.sqrt(63 / 12), 0, 7),
    "random_": Expected(lambda x: torch.empty_like(x).random_(2, 8), 4.5, math.sqrt(35 / 12), 2, 7),
    "random_ to": Expected(lambda x: x.int().random_(8), 3.5, math.sqrt(63 / 12), 0, 7, torch.int32),
    "random_ bool": Expected(lambda x: x.bool().random_().int(), 0.5, 0.5, 0, 1, torch.int32),
    "random_ from": Expected(lambda x: (x * 1).random_(0, None).sub(2**23), 0, 2**24 / ROOT12),
    "poisson": Expected(lambda x: torch.poisson(x + 4), 4, 2, 0),
    "cauchy_ median": Expected(lambda x: torch.empty_like(x).cauchy_(0.5).gt(0.5).float(), 0.5, 0.5, 0, 1),
    "log_normal_": Expected(lambda x: torch.empty_like(x).log_normal_(0, 0.25).log(), 0, 0.25),
    "geometric_": Expected(lambda x: torch.empty_like(x).geometric_(0.5), 2, math.sqrt(2), 1),
    "multinomial": Expected(
        lambda x: torch.multinomial(torch.tensor([1.0, 3.0]), COUNT, replacement=True),
        0.75,
        math.sqrt(3) / 4,
        0,
        1,
        torch.int32,
    ),
    "Bernoulli": Expected(lambda x: distributions.Bernoulli(x + 0.3).sample(), 0.3, math.sqrt(0.21), 0, 1),
    "Normal": Expected(lambda x: distributions.Normal(x + 1, x + 2).sample(), 1, 2),
    "Normal rsample": Expected(lambda x: distributions.Normal(x + 1, x + 2).rsample(), 1, 2),
    "Uniform": Expected(lambda x: distributions.Uniform(x - 1, x + 3).sample(), 1, 4 / ROOT12, -1, 3),
    "Exponential": Expected(lambda x: distributions.Exponential(x + 2).sample(), 0.5, 0.5, 0),
    "Gamma": Expected(lambda x: distributions.Gamma(x + 4, x + 2).sample(), 2, 1, 0),
    "dropout": Expected(lambda x: F.dropout(x + 1, 0.25), 1, math.sqrt(1 / 0.75 - 1), 0, 1.34),
    "gumbel_softmax": Expected(lambda x: F.gumbel_softmax(x.view(-1, 2), hard=True)[:, 0], 0.5, 0.5, 0, 1),
}


def wrapped(function: Callable[..., Any], seed: int | None = 3, options: poptorch.Options | None = None) -> Any:
    options = options or poptorch.Options()
    if seed is not None:
        with torch.random.fork_rng(devices=[]):
            options.randomSeed(seed)
    return poptorch.inferenceModel(Alone(function), options)


@pytest.mark.parametrize("name", SAMPLERS)
def test_distribution(name: str) -> None:
    expected = SAMPLERS[name]
    sample = wrapped(expected.draw)(LIKE)
    assert sample.dtype == expected.dtype
    numbers = sample.double()
    error = 5 * expected.std / math.sqrt(numbers.numel())
    assert abs(numbers.mean() - expected.mean) < error
    assert abs(numbers.std() / expected.std - 1) < 0.1
    assert numbers.min() >= expected.low
    assert numbers.max() <= expected.high


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_seed_fixes_the_draws_and_calls_advance_them(name: str) -> None:
    first, second, other = wrapped(SAMPLERS[name].draw), wrapped(SAMPLERS[name].draw), wrapped(SAMPLERS[name].draw, 4)
    draws = [first(LIKE), first(LIKE)]
    torch.manual_seed(77)  # the host's generator has no part in it
    assert torch.equal(draws[0], second(LIKE))
    assert torch.equal(draws[1], second(LIKE))
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], other(LIKE))


def test_randperm_is_a_permutation() -> None:
    model = wrapped(lambda x: torch.randperm(50))
    first, second = model(LIKE), model(LIKE)
    assert first.dtype == torch.int32
    assert first.sort().values.tolist() == list(range(50))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_certain_outcomes_are_exact(probability: float) -> None:
    model = wrapped(lambda x: (torch.bernoulli(x + probability), F.dropout(x + 1, probability)))
    drawn, dropped = model(LIKE)
    assert bool((drawn == probability).all())
    assert bool((dropped == 1 - probability).all())


def test_two_draws_of_one_call_differ() -> None:
    first, second = wrapped(lambda x: (torch.rand_like(x), torch.rand_like(x)))(LIKE)
    assert not torch.equal(first, second)


def test_host_seed_inside_forward_is_ignored() -> None:
    def reseeding(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        first = torch.rand_like(x)
        torch.manual_seed(0)
        return first - torch.rand_like(x)

    model = wrapped(reseeding)
    assert bool((model(LIKE) != 0).any())


def test_the_host_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    wrapped(torch.rand_like, seed=None)(LIKE)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(("iterations", "replicas"), [(3, 1), (1, 3), (2, 2)])
def test_micro_batches_and_replicas_draw_their_own_numbers(iterations: int, replicas: int) -> None:
    options = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    options.autoRoundNumIPUs(True)
    blocks = wrapped(torch.rand_like, options=options)(torch.zeros(iterations * replicas, 100))
    assert len({tuple(row.tolist()) for row in blocks}) == iterations * replicas


class Noisy(nn.Module):
    """Dropout between a parameter and the loss: where a gradient is zero shows the mask."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 6, 5, 5, 5))
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x * self.scale[(...,) + (0,) * (5 - x.ndim)])
        return y, poptorch.identity_loss(y, reduction="sum")


@pytest.mark.parametrize(
    "kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout]
)
def test_backward_uses_the_mask_of_forward(kind: type[nn.Module]) -> None:
    model = Noisy(kind(0.5))
    shape = {nn.Dropout1d: (4, 6, 5), nn.Dropout3d: (4, 6, 5, 5, 5)}.get(kind, (4, 6, 5, 5))
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    y, _ = training(torch.ones(shape))
    training.destroy()
    moved = (1 - model.scale.detach())[(...,) + (0,) * (5 - len(shape))]
    torch.testing.assert_close(moved != 0, (y != y.min() if "Alpha" in kind.__name__ else y != 0).as_subclass(Tensor))
    if kind in (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout):
        channels = (moved != 0).flatten(2)
        assert bool((channels.all(-1) | ~channels.any(-1)).all())


def test_rrelu_is_random_in_training_and_fixed_in_evaluation() -> None:
    x = -torch.ones(COUNT)
    training = wrapped(nn.RReLU(0.1, 0.3))(x)
    assert training.unique().numel() > 1
    assert -0.3 <= training.min() <= training.max() <= -0.1
    fixed = wrapped(nn.RReLU(0.1, 0.3).eval())(x)
    assert_close_sums(fixed.as_subclass(Tensor), x * 0.2, terms=1)


def test_attention_dropout_and_recurrent_dropout_are_repeatable() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.5)
            self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.5)

        def forward(self, x: Tensor) -> Any:
            return self.attention(x, x, x)[0], self.lstm(x)[0]

    x = normal(5, 2, 8)
    with torch.random.fork_rng(devices=[]):
        runs = [wrapped(Model()) for _ in range(2)]
    first, second = (run(x) for run in runs)
    again = runs[0](x)
    for a, b, c in zip(first, second, again, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
