"""Prints, host calls and custom operators in native code that is divided into stages and runs on several replicas."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums

pytestmark = pytest.mark.timeout(600)  # a C++ compiler at work

REPLICAS, ROWS, SIZE = 2, 2, 4


class TwoStages(nn.Module):
    """What each stage computes is a method of the subclass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        poptorch.Block.start("first", ipu_id=0)
        y = self.one(torch.tanh(self.first(x)))
        poptorch.Block.start("second", ipu_id=1)
        z = self.two(torch.tanh(self.second(y)))
        return z if target is None else poptorch.identity_loss((z - target).square(), "mean")


class Printing(TwoStages):
    def one(self, v: torch.Tensor) -> torch.Tensor:
        return poptorch.ipu_print_tensor(self.cubed(v), "one")

    def two(self, v: torch.Tensor) -> torch.Tensor:
        return poptorch.ipu_print_tensor(self.cubed(v), "two")

    def cubed(self, v: torch.Tensor) -> torch.Tensor:
        total, _ = poptorch.custom_op([v, v], "Cube", "com.acme", 1, example_outputs=[v, v])
        return total


class OnHost(TwoStages):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, float]] = []
        self.host = [poptorch.CPU(self.noting(name), f"native {name}") for name in ("one", "two")]

    def noting(self, name: str) -> Any:
        def note(x: torch.Tensor) -> torch.Tensor:
            self.calls.append((name, x.sum().item()))
            return x.cos()

        return note

    def one(self, v: torch.Tensor) -> torch.Tensor:
        return poptorch.ipu_print_tensor(self.host[0](v), "one")

    def two(self, v: torch.Tensor) -> torch.Tensor:
        return self.host[1](v) * 2


def options(micro_batches: int, *, training: bool) -> poptorch.Options:
    result = poptorch.Options().replicationFactor(REPLICAS).showCompilationProgressBar(False)
    if training:
        result.Training.gradientAccumulation(micro_batches)
        return result.outputMode(poptorch.OutputMode.All)
    return result.deviceIterations(micro_batches)


def is_native(executor: Any) -> bool:
    stages = executor.executable.code.stages
    return all(stage.code.source.startswith("# native") for stage in stages)


def prints(text: str) -> Counter[str]:
    return Counter(re.findall(r"^(?:.*\] )?(\w+): \(", text, re.MULTILINE))


def train(level: str, monkeypatch: Any, capfd: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], Counter[str]]:
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    micro_batches = 3
    model = Printing()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=4.0)
    executor = poptorch.trainingModel(model, options(micro_batches, training=True), optimizer)
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(micro_batches * REPLICAS * ROWS, SIZE, generator=generator) for _ in range(2)]
    executor.compile(*data)
    capfd.readouterr()
    loss = executor(*data)
    assert is_native(executor) == (level == "native")
    printed = prints(capfd.readouterr().err)
    weights = {name: value.clone() for name, value in executor.state_dict().items()}
    executor.destroy()
    return loss, weights, printed


def test_prints_and_custom_operators_in_training(libraries, monkeypatch, capfd) -> None:
    loss, weights, printed = train("native", monkeypatch, capfd)
    each = 3 * REPLICAS  # once for each micro-batch of each replica, and the recomputation of stage one is silent
    assert printed == {"one": each, "two": each, "one_gradient": each, "two_gradient": each}
    expected_loss, expected_weights, expected_prints = train("interpret", monkeypatch, capfd)
    assert printed == expected_prints
    rows = 3 * REPLICAS * ROWS
    assert_close_sums(loss, expected_loss, terms=ROWS * SIZE, steps=2)
    assert_close_sums(weights, expected_weights, terms=rows * SIZE, steps=2)


def test_host_calls_in_inference(monkeypatch, capfd) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    model = OnHost()
    executor = poptorch.inferenceModel(model, options(2, training=False))
    x = torch.randn(2 * REPLICAS * ROWS, SIZE, generator=torch.Generator().manual_seed(1))
    executor.compile(x)
    model.calls.clear()
    capfd.readouterr()
    result = executor(x)
    assert is_native(executor)
    assert Counter(name for name, _ in model.calls) == {"one": 2 * REPLICAS, "two": 2 * REPLICAS}
    assert prints(capfd.readouterr().err) == {"one": 2 * REPLICAS}
    with torch.no_grad():
        expected = torch.tanh(model.second(torch.tanh(model.first(x)).cos())).cos() * 2
    assert_close_sums(result, expected, terms=SIZE, steps=2)


def test_an_exception_in_a_native_stage_is_the_users_own(monkeypatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")

    class Failing(TwoStages):
        broken = False

        def host(self, x: torch.Tensor) -> torch.Tensor:
            if self.broken:
                raise KeyError("no such row")
            return x

        def one(self, v: torch.Tensor) -> torch.Tensor:
            return v

        def two(self, v: torch.Tensor) -> torch.Tensor:
            return poptorch.CPU(self.host, "failing in a stage")(v)

    model = Failing()
    executor = poptorch.inferenceModel(model, options(2, training=False))
    x = torch.ones(2 * REPLICAS * ROWS, SIZE)
    first = executor(x)
    model.broken = Failing.broken = True
    with pytest.raises(KeyError, match="no such row"):
        executor(x)
    model.broken = Failing.broken = False
    assert torch.equal(executor(x), first)  # still usable
