"""Prints and host calls happen in the order of the program, once each, at both levels of code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.executor import level_change

LEVELS = ["interpret", "native"]
COUNT = 8


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the test at one level, and be sure that it did."""
    compiled: list[object] = []
    real = level_change.native_code
    monkeypatch.setattr(level_change, "native_code", lambda *args: compiled.append(args) or real(*args))
    monkeypatch.setenv("POPTORCH_CODEGEN", request.param)
    yield request.param
    assert bool(compiled) == (request.param == "native")


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(2))

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self.weight, *inputs)


def infer(function: Callable[..., Any], *inputs: torch.Tensor, options: Any = None) -> Any:
    model = poptorch.inferenceModel(Model(function), options)
    try:
        return model(*inputs)
    finally:
        model.destroy()


def train(function: Callable[..., Any], *inputs: torch.Tensor, options: Any = None, steps: int = 1) -> Any:
    module = Model(function)
    model = poptorch.trainingModel(module, options, poptorch.optim.SGD(module.parameters(), lr=0.0))
    try:
        return [model(*inputs) for _ in range(steps)][-1]
    finally:
        model.destroy()


class Log:
    """Host operations that note their number and their first value."""

    def __init__(self, label: str) -> None:
        self.calls: list[tuple[int, float]] = []
        self._operations = [poptorch.CPU(self._noting(index), f"{label} {index}") for index in range(COUNT)]

    def _noting(self, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def note(x: torch.Tensor) -> torch.Tensor:
            self.calls.append((index, x.flatten()[0].item()))
            return x + 1

        return note

    def __getitem__(self, index: int) -> poptorch.CPU:
        return self._operations[index]

    def of_runs(self, runs: int) -> list[tuple[int, float]]:
        """The calls without those made during capture."""
        assert len(self.calls) == COUNT * (runs + 1)
        return self.calls[COUNT:]


def titles(err: str) -> list[str]:
    return re.findall(r"^(\w+): ", err, re.MULTILINE)


def test_independent_calls_keep_their_order_in_every_micro_batch(level: str) -> None:
    log = Log(f"independent {level}")

    def forward(weight: torch.Tensor, x: torch.Tensor) -> Any:
        # Used in the opposite order, so that a scheduler that follows the data would turn them round.
        values = [log[index](x * weight * (index + 1)) for index in range(COUNT)]
        total = torch.zeros(2)
        for value in reversed(values):
            total = total * 0.5 + value.sin()
        return total

    infer(forward, torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), options=poptorch.Options().deviceIterations(3))
    expected = [(index, batch * (index + 1.0)) for batch in (1, 2, 3) for index in range(COUNT)]
    assert log.of_runs(3) == expected


def test_calls_are_not_moved_to_save_memory(level: str) -> None:
    # The first call makes much memory, the second one ends the life of much: without a fixed order Inductor turns
    # them round.
    calls: list[str] = []

    def noting(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> poptorch.CPU:
        return poptorch.CPU(lambda x: calls.append(name) or function(x), f"{name} {level}")

    grow = noting("grow", lambda x: x.sum() * torch.ones(128, 1024))
    shrink = noting("shrink", lambda x: x.sum())
    small = noting("small", lambda x: x[:1] + 1)

    def forward(weight: torch.Tensor, x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> Any:
        large = (x[:, None] * left) @ right
        grown, shrunk, one = grow(x), shrink(large), small(x)
        return (grown * shrunk).sum(1) + one + weight.sum()

    infer(forward, torch.ones(128), torch.ones(128, 2), torch.ones(2, 1024))
    assert calls == ["grow", "shrink", "small"] * 2  # capture, then the run


def test_unused_calls_are_made(level: str) -> None:
    log = Log(f"unused {level}")

    def forward(weight: torch.Tensor, x: torch.Tensor) -> Any:
        for index in range(COUNT):
            log[index](x * weight)
        return x * 2

    infer(forward, torch.ones(2))
    assert [index for index, _ in log.of_runs(1)] == list(range(COUNT))


def test_calls_and_prints_of_a_training_step(level: str, capfd: pytest.CaptureFixture[str]) -> None:
    log = Log(f"training {level}")

    def forward(weight: torch.Tensor, x: torch.Tensor) -> Any:
        parts = []
        for index in range(COUNT):
            y = poptorch.ipu_print_tensor(x * weight * (index + 1), f"p{index}")
            parts.append(y * log[index](y.detach()))
        total = torch.zeros(2)
        for part in reversed(parts):
            total = total + part
        return poptorch.identity_loss(total, "sum")

    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    train(forward, torch.tensor([[1.0, 0.0], [2.0, 0.0]]), options=options)
    assert log.of_runs(2) == [(index, batch * (index + 1.0)) for batch in (1, 2) for index in range(COUNT)]
    printed = titles(capfd.readouterr().err)
    one = printed[: len(printed) // 2]
    assert printed == one + one  # both micro-batches alike
    assert one[:COUNT] == [f"p{index}" for index in range(COUNT)]
    assert sorted(one[COUNT:]) == [f"p{index}_gradient" for index in range(COUNT)]


def test_the_order_of_gradients_is_that_of_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def forward(weight: torch.Tensor, x: torch.Tensor) -> Any:
        parts = [poptorch.ipu_print_tensor(x * weight * (i + 1), f"p{i}") for i in range(COUNT)]
        return poptorch.identity_loss(sum(part.sin() for part in reversed(parts)), "sum")

    printed = {}
    for level in LEVELS:
        monkeypatch.setenv("POPTORCH_CODEGEN", level)
        train(forward, torch.ones(2))
        printed[level] = titles(capfd.readouterr().err)
    assert printed["native"] == printed["interpret"]
    assert len(printed["native"]) == 2 * COUNT


def test_calls_in_loops_and_branches(level: str) -> None:
    log = Log(f"bodies {level}")

    def forward(weight: torch.Tensor, x: torch.Tensor) -> Any:
        def body(v: torch.Tensor) -> torch.Tensor:
            log[1](v)  # nobody needs the result
            return log[2](v)

        a = log[0](x * weight)
        (b,) = poptorch.for_loop(2, body, [x])
        (c,) = poptorch.cond(x.sum() > 0, lambda v: log[3](v), [x], lambda v: log[4](v), [x])
        d = log[5](x)
        return d * 2 + c * 3 + b * 4 + a * 5

    y = infer(forward, torch.ones(2))
    assert y.tolist() == [2 * 2 + 2 * 3 + 3 * 4 + 2 * 5] * 2
    captured = len(log.calls) - 7
    assert log.calls[captured:] == [(0, 1.0), (1, 1.0), (2, 1.0), (1, 2.0), (2, 2.0), (3, 1.0), (5, 1.0)]


def test_a_loop_trained_calls_and_prints_once_per_iteration(level: str, capfd: pytest.CaptureFixture[str]) -> None:
    log = Log(f"trained loop {level}")

    def forward(weight: torch.Tensor, x: torch.Tensor) -> Any:
        def inner(v: torch.Tensor) -> torch.Tensor:
            return poptorch.ipu_print_tensor(v * weight, "inner")

        def outer(v: torch.Tensor) -> torch.Tensor:
            v = poptorch.for_loop(2, inner, [v])[0]
            return poptorch.ipu_print_tensor(v.sin(), "outer") * log[0](v.detach())

        return poptorch.identity_loss(poptorch.for_loop(2, outer, [x])[0], "sum")

    train(forward, torch.ones(2))
    printed = titles(capfd.readouterr().err)
    assert printed == ["inner", "inner", "outer"] * 2 + ["outer_gradient", "inner_gradient", "inner_gradient"] * 2
    assert len(log.calls) == 1 + 2


class MyError(Exception):
    pass


def test_exceptions_come_back_as_they_are(level: str) -> None:
    failure = MyError("from the host", 3)

    def host(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 5:
            raise failure
        return x

    op = poptorch.CPU(host, f"failing {level}")
    module = Model(lambda weight, x: op(x * weight) + 1)
    model = poptorch.inferenceModel(module, poptorch.Options().deviceIterations(2))
    with pytest.raises(MyError) as caught:
        model(torch.tensor([[1.0, 1.0], [9.0, 9.0]]))
    assert caught.value is failure
    assert model(torch.ones(2, 2)).tolist() == [[2.0, 2.0]] * 2  # the model can be called again
    model.destroy()


# ---- several IPUs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputation_does_not_repeat_effects(recompute: bool, capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[float] = []

    def host(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.flatten()[0].item())
        return x + 1

    op = poptorch.CPU(host, f"recomputed {recompute}")

    def forward(weight: torch.Tensor, x: torch.Tensor) -> Any:
        with poptorch.Block("first", ipu_id=0):
            y = poptorch.ipu_print_tensor((x * weight).sin(), "y", print_gradient=False)
            y = y * op(y.cos().detach())

            def body(v: torch.Tensor) -> torch.Tensor:
                return poptorch.ipu_print_tensor((v * weight).tanh(), "z", print_gradient=False)

            y = poptorch.for_loop(2, body, [y.sin()])[0]
        with poptorch.Block("second", ipu_id=1):
            return poptorch.identity_loss(y * weight, "sum")

    options = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution("first", "second"))
    options.Training.gradientAccumulation(3)
    options._Popart.set("autoRecomputation", 3 if recompute else 0)
    train(forward, torch.arange(6.0).view(3, 2), options=options)
    printed = titles(capfd.readouterr().err)
    assert printed == ["y", "z", "z"] * 3
    assert len(calls) == 1 + 3
    assert_close_sums(calls[1:], torch.arange(6.0).view(3, 2)[:, 0].sin().cos().tolist(), terms=1)
