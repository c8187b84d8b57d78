"""Looking inside compiled models: the first value that is not finite, and the first that differs from eager mode."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.debug import compareWithEager, findNonFinite


class Net(nn.Module):
    """Everything a comparison has to cope with: a mask, random numbers, statistics, a loss."""

    def __init__(self, pipelined: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pipelined = pipelined
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.pipelined:
            poptorch.Block.start("a", ipu_id=0)
        h = self.dropout(self.norm(self.first(x)))
        h = h.masked_fill(h > 1e9, float("-inf"))
        if self.pipelined:
            poptorch.Block.start("b", ipu_id=1)
        y = self.second(torch.sqrt(h.abs() + 1e-3))
        return y, nn.functional.cross_entropy(y, label)


def training(model: nn.Module, accumulation: int = 1, **settings: Any) -> Any:
    options = poptorch.Options().randomSeed(3)
    options.Training.gradientAccumulation(accumulation)
    return poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=0.1, **settings))


def data(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 4, generator=generator), torch.arange(rows) % 3


class Overflowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.inner = nn.Softplus()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.inner(torch.exp(x * self.scale) + 1)
        return y, poptorch.identity_loss(y, "mean")


class Linear(nn.Module):
    """Its gradient is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss((x * self.weight).sum(), "none")


X_LARGE = torch.full((1, 2), 1e30)


class TestFindNonFinite:
    def test_nothing_to_find(self) -> None:
        assert findNonFinite(training(Net()), *data()) is None
        assert findNonFinite(training(Net(pipelined=True), accumulation=4), *data(16)) is None

    def test_the_first_operation_with_its_line_and_its_inputs(self) -> None:
        model = training(Overflowing(), accumulation=2)
        found = findNonFinite(model, torch.tensor([1.0, 2.0, 3.0, 99.0]))
        assert found is not None
        assert found.what == "overflow"
        assert found.name == "Exp:0"
        lines, first = inspect.getsourcelines(Overflowing.forward)
        assert found.source is not None
        assert found.source.line == first + next(i for i, line in enumerate(lines) if "exp" in line)
        assert found.source.file == __file__
        assert found.inputs["Mul:0"].tolist() == [3, 99]
        assert found.micro_batch is not None
        assert found.micro_batch.step == 1
        assert found.output is not None
        assert "1 infinite" in str(found)
        assert "'exp'" in str(found)

    def test_the_backward_pass(self) -> None:
        class Root(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(2))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return poptorch.identity_loss(torch.sqrt(self.weight * x), "sum")

        found = findNonFinite(training(Root()), torch.ones(2))
        assert found is not None
        assert found.backward
        assert "backward pass" in found.operation

    def test_what_is_given(self) -> None:
        model, (x, label) = training(Net()), data()
        x[0, 0] = float("nan")
        found = findNonFinite(model, x, label)
        assert found is not None
        assert (found.name, found.what) == ("x", "not finite before the call")
        model = Net()
        model.second.bias.data[0] = float("inf")
        found = findNonFinite(training(model), *data())
        assert found is not None
        assert found.name == "second.bias"

    def test_nothing_changes(self) -> None:
        model = Net()
        executor = training(model, accumulation=2)
        executor(*data(8))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        random = executor.rng_state
        findNonFinite(executor, *data(8))
        compareWithEager(executor, *data(8))
        executor.copyWeightsToHost()
        assert executor.rng_state == random
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name

    @pytest.mark.parametrize(("accumulation", "iterations"), [(1, 1), (3, 1), (1, 3), (2, 2)])
    def test_the_update_of_the_weight(self, accumulation: int, iterations: int) -> None:
        model = Linear()
        options = poptorch.Options().deviceIterations(iterations)
        options.Training.gradientAccumulation(accumulation)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=1e38)
        executor = poptorch.trainingModel(model, options, optimizer)
        x = torch.full((accumulation * iterations, 2), 100.0)
        executor.compile(x)
        before = model.weight.detach().clone()
        found = findNonFinite(executor, x)
        assert found is not None
        assert found.parameter == "weight"
        assert found.name == "UpdatedVar___weight"
        assert found.what == "overflow"
        assert set(found.inputs) == {"Gradient___weight", "weight"}
        assert torch.equal(found.inputs["weight"], before)
        assert found.micro_batch is not None
        assert found.micro_batch.iteration == 0
        assert "the update of the weight of parameter 'weight'" in str(found)
        assert torch.equal(model.weight.detach(), before)  # nothing has changed
        executor(x)
        assert not torch.isfinite(model.weight).all()

    def test_the_state_of_the_optimizer(self) -> None:
        model = Linear()
        optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
        executor = poptorch.trainingModel(model, optimizer=optimizer)
        executor.compile(X_LARGE)
        found = findNonFinite(executor, X_LARGE)  # the square of the gradient is too large
        assert found is not None
        assert found.parameter == "weight"
        assert "Accl2___" in found.name
        assert "the optimizer's state of parameter 'weight'" in found.operation
        assert "Gradient___weight" in found.inputs

    def test_later_updates_follow_earlier_ones(self) -> None:
        class Growing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.tensor([1.0]))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return poptorch.identity_loss(-(self.weight**2 * x).sum(), "none")

        model = Growing()
        options = poptorch.Options().deviceIterations(4)
        executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=5e19))
        found = findNonFinite(executor, torch.ones(4, 1))  # 1, 1e20, then its square is infinite
        assert found is not None
        assert found.micro_batch is not None
        assert found.micro_batch.iteration == 1
        assert not found.parameter

    def test_sums_of_gradients(self) -> None:
        options = poptorch.Options()
        options.Training.gradientAccumulation(4)
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
        model = Linear()
        executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
        found = findNonFinite(executor, torch.full((4, 2), 2e38))
        assert found is not None
        assert found.name == "Gradient___weight"
        assert "the sum of the gradients of parameter 'weight'" in found.operation

    def test_a_plain_module(self) -> None:
        found = findNonFinite(Overflowing(), torch.tensor([99.0]))
        assert found is not None
        assert found.name == "Exp:0"
        with pytest.raises(poptorch.Error, match="Expected a model wrapped by"):
            findNonFinite(torch.exp, torch.ones(1))


class TestCompareWithEager:
    @pytest.mark.parametrize("pipelined", [False, True])
    def test_training_with_random_numbers(self, pipelined: bool) -> None:
        executor = training(Net(pipelined), accumulation=4)
        found = compareWithEager(executor, *data(16))
        assert found.first is None, str(found)
        names = [row.name for row in found.rows]
        assert any(name.startswith("first/") for name in names)
        assert {"Gradient___first.weight", "Gradient___second.bias"} <= set(names)
        assert len(names) > found.left_out
        executor(*data(16))
        assert compareWithEager(executor, *data(16)).first is None  # on the weights that were trained

    def test_the_first_difference(self) -> None:
        class Different(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.inner(x)
                factor = 2.0 if poptorch.isRunningOnIpu() else 2.5
                return torch.tanh(y * factor)  # here

        found = compareWithEager(poptorch.inferenceModel(Different()), torch.ones(2, 4))
        assert found.first is not None
        assert found.first.name == "Mul:0"
        assert found.first.source is not None
        assert found.first.relative == pytest.approx(0.2, rel=1e-3)
        text = str(found)
        assert text.startswith(f"First difference: Mul:0, at {__file__}:")
        assert "> Mul:0" in text
        assert compareWithEager(poptorch.inferenceModel(Different()), torch.ones(2, 4), tolerance=0.9).first is None

    def test_half_precision_agrees_within_its_digits(self) -> None:
        model = poptorch.inferenceModel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).half())
        found = compareWithEager(model, torch.ones(2, 4).half())
        assert found.rows
        assert found.first is None, str(found)
