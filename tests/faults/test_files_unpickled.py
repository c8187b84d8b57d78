"""``poptorch.load(..., trusted=False)`` unpickles nothing."""

from __future__ import annotations

import io
import os

import pytest
import torch
from torch import nn

import poptorch
from poptorch.executable import file as container
from poptorch.executable.file import File


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, target=None):
        y = self.fc(nn.functional.dropout(x, 0.5, self.training))
        return y if target is None else (y, nn.functional.mse_loss(y, target))


class Trap:
    """Says so when it is unpickled."""

    def __init__(self, path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Dropped()


def test_everything_but_the_model_is_loaded(model, tmp_path, monkeypatch):
    path = str(tmp_path / "model.poptorch")
    options = poptorch.Options().randomSeed(3)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.0)
    executor = poptorch.trainingModel(model, options, optimizer)
    x, target = torch.ones(4, 3), torch.ones(4, 2)
    executor(x, target)
    executor.save(path)
    expected = executor(x, target)
    executor.destroy()

    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr("pickle.loads", refuse)
    monkeypatch.setattr("pickle.Unpickler", refuse)
    with pytest.raises(poptorch.Error, match=r"pickled, and trusted=False refuses.*model="):
        poptorch.load(path, trusted=False)
    again = poptorch.load(
        path, lambda options: options.randomSeed(3), trusted=False, model=model,
        optimizer=poptorch.optim.SGD(model.parameters(), lr=0.0),
    )  # fmt: skip
    assert again.isCompiled()
    for got, wanted in zip(again(x, target), expected, strict=True):
        assert torch.equal(got, wanted), "the random numbers go on where they were"


def test_a_trap_is_not_touched(model, tmp_path):
    path, trap = str(tmp_path / "model.poptorch"), tmp_path / "trapped"
    poptorch.inferenceModel(model.eval()).compileAndExport(path, torch.ones(4, 3))
    file = File(path)
    sections = {name: file.bytes(name) for name in file.names()}
    buffer = io.BytesIO()
    torch.save({"model": Trap(trap)}, buffer)
    container.write(path, {**sections, "model": buffer.getvalue()})
    poptorch.load(path, trusted=False, model=model)
    poptorch.inferenceModel(model).loadExecutable(path)
    assert not trap.exists()
    inputs = {name: data for name, data in sections.items() if not name.startswith("input")}
    container.write(path, {**inputs, "pickled inputs": buffer.getvalue()})
    for load in (
        lambda: poptorch.load(path, trusted=False, model=model),
        lambda: poptorch.inferenceModel(model).loadExecutable(path),
    ):
        with pytest.raises(poptorch.Error, match="only pickle can restore"):
            load()
    assert not trap.exists()


def test_files_without_a_model_and_models_for_files_with_one(model, tmp_path):
    path = str(tmp_path / "model.poptorch")
    executor = poptorch.inferenceModel(model.eval())
    executor.compileAndExport(path, torch.ones(4, 3), export_model=False)
    assert torch.equal(poptorch.load(path, trusted=False, model=model)(torch.ones(4, 3)), executor(torch.ones(4, 3)))
    with pytest.raises(poptorch.Error, match="Use trusted=False to take your own"):
        poptorch.load(path, model=model)
