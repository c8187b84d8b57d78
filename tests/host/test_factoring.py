"""Gradients that stay two factors until the accumulator multiplies them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.optim import SGD
from poptorch.runtime.values.factored import Product


class Layers(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.tanh(self.first(x)))
        return poptorch.identity_loss((y * y).mean(), reduction="none")


class Tied(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(torch.tanh(self.first(x)))
        return poptorch.identity_loss((y * y).mean(), reduction="none")


class Rewriting(Layers):
    """Writes to its input, which is a factor of the first gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x)
        x.data.mul_(0.0)
        return loss


def trained(model: nn.Module, x: torch.Tensor, micro: int, optimizer: Any = None, **options: Any) -> Any:
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(micro)
    if "replicas" in options:
        opts.replicationFactor(options["replicas"])
    wrapped = poptorch.trainingModel(model, opts, optimizer or torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        wrapped(x)
    return wrapped


def in_eager(model: nn.Module, x: torch.Tensor, micro: int) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        for block in x.chunk(micro):
            (model(block) / micro).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def outputs_of(wrapped: Any, rows: int) -> list[Any]:
    """What the code of one micro-batch returns."""
    engine = wrapped.session.engine
    arguments = engine.memory.weights, engine.memory.buffers[0], engine.memory.constants, [torch.ones(rows, 16)], ()
    return list(engine.executable.code.micro_batch.run(*arguments, None))


@pytest.mark.parametrize("kind", [Layers, Tied])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("rows", [1, 4, 32])
def test_training_equals_eager(kind: type[Layers], replicas: int, rows: int) -> None:
    torch.manual_seed(0)
    model, reference = kind(), kind()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(4 * rows, 16)
    wrapped = trained(model, x, 4 // replicas, replicas=replicas)
    wrapped.copyWeightsToHost()
    assert_close_sums(list(model.parameters()), in_eager(reference, x, 4), terms=16, steps=3)


@pytest.mark.parametrize(("rows", "products"), [(1, 2), (8, 2), (9, 0), (64, 0)])
def test_only_factors_that_are_smaller_than_their_product_are_kept(rows: int, products: int) -> None:
    wrapped = trained(Layers(), torch.randn(2 * rows, 16), 2)
    assert sum(isinstance(o, Product) for o in outputs_of(wrapped, rows)) == products


def test_a_single_micro_batch_has_whole_gradients() -> None:
    wrapped = trained(Layers(), torch.randn(2, 16), 1)
    assert not any(isinstance(o, Product) for o in outputs_of(wrapped, 2))


def test_a_weight_that_is_used_twice_has_a_whole_gradient() -> None:
    wrapped = trained(Tied(), torch.randn(2, 16), 2)
    assert not any(isinstance(o, Product) for o in outputs_of(wrapped, 1))


def test_a_factor_that_is_written_to_keeps_its_meaning() -> None:
    torch.manual_seed(0)
    model, reference = Rewriting(), Rewriting()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(4, 16)
    expected = in_eager_once(reference, x.clone())
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    wrapped = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    wrapped(x.clone())
    wrapped.copyWeightsToHost()
    assert_close_sums(list(model.parameters()), expected, terms=16)


def in_eager_once(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for row in x.chunk(4):
        (model(row) / 4).backward()
    optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("strategy", [poptorch.MeanReductionStrategy.Running, poptorch.MeanReductionStrategy.Post])
def test_means_are_those_of_whole_gradients(strategy: poptorch.MeanReductionStrategy) -> None:
    torch.manual_seed(0)
    model, reference = Layers(), Layers()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(4, 16)
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    opts.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    wrapped = poptorch.trainingModel(model, opts, SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        wrapped(x)
    wrapped.copyWeightsToHost()
    assert_close_sums(list(model.parameters()), in_eager(reference, x, 4), terms=16, steps=3)


def test_accumulators_of_another_type_take_the_product() -> None:
    torch.manual_seed(0)
    model, reference = Layers(), Layers()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(4, 16)
    optimizer = SGD(model.parameters(), lr=0.1, accum_type=torch.float16)
    wrapped = trained(model, x, 4, optimizer)
    wrapped.copyWeightsToHost()
    assert_close_sums(list(model.parameters()), in_eager(reference, x, 4), terms=1, dtype=torch.float16)


def test_the_accumulator_multiplies_once_for_several_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def count(self: Product, total: torch.Tensor, **scales: float) -> None:
        sizes.append(self.left.shape[0])
        add_to(self, total, **scales)

    add_to = Product.add_to
    monkeypatch.setattr(Product, "add_to", count)
    model = Layers()
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(6)
    poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))(torch.randn(6, 16))
    # Four rows of both factors are half as large as the gradient: of six micro-batches of one row, four fit.
    assert sizes == [4, 4, 2, 2]
