"""What another process would bring: gradients to add, counts to add, and other numbers for its replicas."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.executable.groups import HostLoop
from poptorch.program.loop import Loop
from poptorch.runtime.exchange import ExchangeTransfer
from poptorch.runtime.random_numbers import RandomNumbers


class Arrived:
    """Gradients at the end of their way."""

    def __init__(self, gradients: Mapping[str, torch.Tensor]) -> None:
        self._gradients = gradients

    def advance(self) -> None:
        pass

    def take(self) -> Mapping[str, torch.Tensor]:
        return self._gradients


class Twin:
    """Another process with the same gradients: a sum is twice as large."""

    is_local = False

    def __init__(self) -> None:
        self.calls = 0

    def start(self, gradients: Mapping[str, torch.Tensor], held: Mapping[str, tuple[int, int]]) -> ExchangeTransfer:
        self.calls += 1
        return Arrived({name: 2 * gradient for name, gradient in gradients.items()})

    def abandon(self) -> None:
        raise AssertionError("no call fails here")

    def sum_counts(self, count: int) -> int:
        return 2 * count


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.layer(x).pow(2).mean(), reduction="none")


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_gradients_are_reduced_between_accumulation_and_update(replicas: int, accumulation: int) -> None:
    model = Net()
    reference = copy.deepcopy(model)
    options = poptorch.Options().replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(4 * replicas * accumulation, 4, generator=torch.Generator().manual_seed(1))
    executor.compile(x)
    executor.session.engine.exchange = exchange = Twin()
    executor(x)
    assert exchange.calls == 1
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.2)  # twice the gradient
    reference(x).backward()
    optimizer.step()
    assert_close_sums(dict(model.named_parameters()), dict(reference.named_parameters()), terms=16, steps=2)


def test_updates_during_back_propagation_step_aside() -> None:
    model = Net()
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(torch.ones(4, 4))
    assert executor.executable.code.step is not None
    executor.session.engine.exchange = exchange = Twin()
    for _ in range(2):
        executor(torch.ones(4, 4))
    assert exchange.calls == 2


def test_random_keys_have_the_global_number_of_a_replica() -> None:
    here, there = (RandomNumbers(HostLoop(replicas=2, first_replica=first, all_replicas=4)) for first in (0, 2))
    alone = RandomNumbers(HostLoop(replicas=4))
    for numbers in (here, there, alone):
        numbers.state = [42]
    keys = [numbers.of_group(0, replica).key for numbers in (here, there) for replica in range(2)]
    assert keys == [alone.of_group(0, replica).key for replica in range(4)]
    assert here.of_update().key == there.of_update().key


def test_replicas_are_numbered_over_the_processes_of_the_options() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    def drawn(replicas: int, process: int = 0, processes: int = 1) -> torch.Tensor:
        options = poptorch.Options().replicationFactor(replicas).randomSeed(7)
        options.Distributed.configureProcessId(process, processes)
        executor = poptorch.inferenceModel(Noise(), options)
        result = executor(torch.zeros(2 * replicas))
        loop = executor.executable.device.loop
        assert (loop.first_replica, loop.all_replicas) == (replicas * process, replicas * processes)
        executor.destroy()
        return result

    assert torch.equal(torch.cat([drawn(2, 0, 2), drawn(2, 1, 2)]), drawn(4))


def test_means_are_over_all_processes() -> None:
    loop = Loop(gradient_accumulation=3, replicas=2, first_replica=2, all_replicas=4)
    assert (loop.micro_batches_per_update, loop.all_micro_batches_per_update) == (6, 12)
    assert Loop(gradient_accumulation=3, replicas=2).all_micro_batches_per_update == 6
