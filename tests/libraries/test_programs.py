"""Programs under each choice of a library: the same results, by whatever runs them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch.libraries import onednn

pytestmark = pytest.mark.skipif(not onednn.is_there(), reason="this torch has no oneDNN that can be called")

LEVELS = ("interpret", "native")


class Model(nn.Module):
    """Products of all kinds: with and without biases, of batches, and their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.second = nn.Linear(16, 12, bias=False)
        self.loss = nn.MSELoss()

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> Any:
        y = self.second(torch.relu(self.first(x)))  # (B, T, 12)
        y = torch.bmm(torch.bmm(y, x.mT).softmax(-1), y)
        return y if target is None else (y, self.loss(y, target))


def data(rows: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(rows, 6, 12), torch.randn(rows, 6, 12)


def trained(model: nn.Module, options: poptorch.Options | None = None, calls: int = 3, rows: int = 2) -> Any:
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options, optimizer)
    outputs = [executor(*data(rows))[1] for _ in range(calls)]
    return executor, [*outputs, *(p.detach().clone() for p in model.parameters())]


def make(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model()


def in_float64(calls: int = 3) -> list[torch.Tensor]:
    model = make().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    x, target = (tensor.double() for tensor in data())
    for _ in range(calls):
        optimizer.zero_grad()
        loss = model(x, target)[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """oneDNN is forced; the list gets the shape of each result that Python asked it for."""
    monkeypatch.setenv("POPTORCH_PRODUCTS", "onednn")
    shapes: list[tuple[int, ...]] = []
    real = onednn.matmul_into

    def spy(left: Any, right: Any, out: torch.Tensor, *scales: float) -> None:
        shapes.append(tuple(out.shape))
        real(left, right, out, *scales)

    monkeypatch.setattr(onednn, "matmul_into", spy)
    return shapes


def close(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert_close_sums(ours.double(), theirs.double(), terms=32, steps=8, dtype=torch.float32)


@pytest.mark.parametrize("level", LEVELS)
def test_training(monkeypatch, by_onednn, level):
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    executor, values = trained(make())
    close(values, in_float64())
    assert "by onednn" in next(line for line in executor.executable.code.log if line.startswith("matrix products"))
    if level == "interpret":
        assert {(12, 12), (12, 16), (2, 6, 6)} <= {*by_onednn} | {shape[::-1] for shape in by_onednn}
    _, again = trained(make())
    assert all(map(torch.equal, values, again)), "the same bits twice"


@pytest.mark.parametrize("level", LEVELS)
def test_inference(monkeypatch, by_onednn, level):
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    model, (x, _) = make(), data()
    executor = poptorch.inferenceModel(model)
    close([executor(x)], [make().double()(x.double())])
    with torch.no_grad():
        model.first.weight.mul_(2)
    executor.copyWeightsToDevice()
    changed = make().double()
    with torch.no_grad():
        changed.first.weight.mul_(2)
    close([executor(x)], [changed(x.double())])


@pytest.mark.parametrize("level", ["interpret", pytest.param("native", marks=pytest.mark.slow)])
def test_pipelines_replicas_and_accumulation(monkeypatch, by_onednn, level):
    """Weight gradients stay two factors until the accumulator multiplies them, by the same library."""
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    model = make()
    model.second = poptorch.BeginBlock(model.second, ipu_id=1)
    options = poptorch.Options().replicationFactor(2)
    options.Training.gradientAccumulation(4)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    _, values = trained(model, options, rows=16)
    expected = make()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = expected(*data(16))[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    for ours, theirs in zip(values[3:], expected.parameters(), strict=True):
        assert_close_sums(ours, theirs.detach(), terms=64, steps=8)


def test_code_for_one_library_is_not_taken_for_that_of_another(monkeypatch):
    from poptorch.host.levels import target_for
    from poptorch.host.store.code_store import code_key

    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    program = trained(make(), calls=1)[0].program
    keys = []
    for library in ("mkl", "onednn", "mkl"):
        monkeypatch.setenv("POPTORCH_PRODUCTS", library)
        keys.append(code_key("step", program, None, target_for(program, 1)))
    assert keys[0] == keys[2] != keys[1]


def test_python_between_kernels(monkeypatch, by_onednn):
    from poptorch.host import levels
    from poptorch.host.native.inductor import EntryPoint

    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    monkeypatch.setattr(levels, "entry_for", lambda *_: EntryPoint.PYTHON)
    _, values = trained(make())
    close(values, in_float64())
    assert by_onednn
