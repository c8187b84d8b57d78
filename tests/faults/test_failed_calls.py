"""A training call that fails half-way: the host shows what the device holds, and training goes on from there."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums

ITERATIONS, ROWS = 4, 6
"""Of a call, and of a device iteration."""

OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda parameters: poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9, use_combined_accum=False),
    lambda parameters: poptorch.optim.AdamW(parameters, lr=0.01),
]


class Bomb:
    """A host operation that fails in its n-th call."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.left: int | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise type(self.error)(*self.error.args)  # a new one: errors keep the frames that they came through
        return x


class Classifier(nn.Module):
    """Everything that a call may leave behind: weights, statistics, a counter, random numbers."""

    def __init__(self, bomb: Bomb, pipelined: bool) -> None:
        super().__init__()
        self.bomb = poptorch.CPU(bomb, "bomb")
        self.pipelined = pipelined
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.pipelined:
            poptorch.Block.start("a", ipu_id=0)
        self.calls.add_(1)
        y = self.dropout(self.norm(self.first(x)))
        if self.pipelined:
            poptorch.Block.start("b", ipu_id=1)
        y = self.second(y) + 0 * self.bomb(x).sum()
        return y, nn.functional.cross_entropy(y, label)


class Setup:
    """A model that is trained on ``iterations`` device iterations in each call."""

    def __init__(self, optimizer: Any, kind: str, error: BaseException, iterations: int = ITERATIONS) -> None:
        torch.manual_seed(0)
        self.bomb = Bomb(error)
        pipelined = kind == "pipeline"
        self.accumulation = 1 if kind == "one step" else 3
        self.model = Classifier(self.bomb, pipelined)
        options = poptorch.Options().deviceIterations(iterations).randomSeed(1)
        options.Training.gradientAccumulation(self.accumulation)
        if not pipelined:
            options.setExecutionStrategy(poptorch.ShardedExecution())
        self.optimizer = optimizer(self.model.parameters())
        self.executor = poptorch.trainingModel(self.model, options, self.optimizer)

    def state(self) -> dict[str, Any]:
        return {
            "model": copy.deepcopy(dict(self.model.state_dict())),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "random": list(self.executor.rng_state or ()),
        }


def data(seed: int, iterations: int = ITERATIONS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = ITERATIONS * ROWS
    x, label = torch.randn(rows, 4, generator=generator), torch.randint(0, 3, (rows,), generator=generator)
    used = iterations * ROWS
    return x[:used], label[:used]


def fail(setup: Setup, how: str) -> None:
    """The second call fails in its third device iteration."""
    x, label = data(2)
    if how == "label":
        label[2 * ROWS] = 17
        with pytest.raises((IndexError, RuntimeError)):
            setup.executor(x, label)
        return
    setup.bomb.left = 2 * setup.accumulation + 1
    with pytest.raises(type(setup.bomb.error)):
        setup.executor(x, label)
    setup.bomb.left = None


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["momentum", "adamw"])
@pytest.mark.parametrize("kind", ["one step", "accumulated", "pipeline"])
@pytest.mark.parametrize("how", ["label", "interrupt"])
def test_the_host_shows_what_the_device_holds(
    optimizer: Any, kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_GROUP", "1")
    error = KeyboardInterrupt()
    broken = Setup(optimizer, kind, error)
    broken.executor(*data(1))
    before = broken.state()
    fail(broken, how)
    held = broken.state()

    # Two whole updates were done.
    assert held["random"][1] == before["random"][1] + 2 * broken.accumulation
    assert not torch.equal(held["model"]["first.weight"], before["model"]["first.weight"])
    short = Setup(optimizer, kind, error, iterations=2)
    for half in (slice(0, 12), slice(12, 24)):
        short.executor(*(t[half] for t in data(1)))
    short.executor(*data(2, iterations=2))
    assert_close_sums(held["model"]["first.weight"], short.state()["model"]["first.weight"], terms=64, steps=8)

    # A program that was started from what the host shows goes on in the same way.
    resumed = Setup(optimizer, kind, error)
    resumed.model.load_state_dict(held["model"])
    resumed.executor.compile(*data(3))
    resumed.optimizer.load_state_dict(held["optimizer"])
    resumed.executor.rng_state = held["random"]
    for seed in (3, 4):
        for one, other in zip(broken.executor(*data(seed)), resumed.executor(*data(seed)), strict=True):
            assert torch.equal(one, other)
    final, expected = broken.state(), resumed.state()
    assert final["random"] == expected["random"]
    for name, value in expected["model"].items():
        assert torch.equal(final["model"][name], value), name
    for name, value in expected["optimizer"]["ipu_state"].items():
        assert torch.equal(final["optimizer"]["ipu_state"][name], value), name
    print("1 failed call in the middle of 4 device iterations")


@contextlib.contextmanager
def second_copy_interrupted() -> Iterator[None]:
    tries, original = 0, torch.Tensor.copy_

    def interrupted(tensor: torch.Tensor, *args: Any) -> torch.Tensor:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise KeyboardInterrupt
        return original(tensor, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", interrupted)
        yield


def test_an_interrupted_copy_to_the_host_is_done_again() -> None:
    setup = Setup(OPTIMIZERS[0], "accumulated", KeyboardInterrupt())
    setup.executor(*data(1))
    expected = setup.state()["model"]
    setup.executor(*data(2))
    with second_copy_interrupted(), pytest.raises(KeyboardInterrupt):
        setup.executor.copyWeightsToHost()
    shown = setup.state()["model"]
    assert not torch.equal(shown["second.weight"], expected["second.weight"])
    setup.executor.copyWeightsToHost()
    for name, value in setup.state()["model"].items():
        assert torch.equal(shown[name], value), name


def test_an_interrupted_copy_to_the_device_is_done_again() -> None:
    setup, other = (Setup(OPTIMIZERS[0], "accumulated", KeyboardInterrupt()) for _ in range(2))
    for it in (setup, other):
        it.executor(*data(1))
        with torch.no_grad():
            for parameter in it.model.parameters():
                parameter.mul_(0.5)
    with second_copy_interrupted(), pytest.raises(KeyboardInterrupt):
        setup.executor.copyWeightsToDevice()
    other.executor.copyWeightsToDevice()
    for one, expected in zip(setup.executor(*data(2)), other.executor(*data(2)), strict=True):
        assert torch.equal(one, expected)
