"""Weights in files of safetensors, and checkpoints of torch.distributed.checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import poptorch
from poptorch.integrations.checkpoint import load_checkpoint, save_checkpoint
from poptorch.integrations.safetensors import load_model, save_model


class Tied(nn.Module):
    """An embedding whose weight is the head's, a norm with buffers, dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> Any:
        logits = self.head(self.dropout(self.norm(self.embedding(ids))))
        return logits, nn.functional.cross_entropy(logits, ids)


IDS = torch.arange(7)


def training(optimizer: Any = poptorch.optim.AdamW) -> tuple[Tied, Any, poptorch.PoplarExecutor]:
    model = Tied()
    made = optimizer(model.parameters(), lr=0.1)
    return model, made, poptorch.trainingModel(model, poptorch.Options().randomSeed(3), made)


def losses(executor: poptorch.PoplarExecutor, steps: int) -> list[float]:
    return [executor(IDS)[1].item() for _ in range(steps)]


# -- safetensors -------------------------------------------------------------------------------------------------------


def test_the_file_is_that_of_the_plain_module(tmp_path: Path) -> None:
    model, _, executor = training()
    losses(executor, 2)
    save_model(executor, tmp_path / "wrapped.safetensors")
    executor.destroy()
    safetensors.torch.save_model(model, str(tmp_path / "plain.safetensors"))
    assert (tmp_path / "wrapped.safetensors").read_bytes() == (tmp_path / "plain.safetensors").read_bytes()


@pytest.mark.parametrize("take", [lambda model, executor: executor, lambda model, executor: model])
def test_a_file_reaches_the_device(take: Any, tmp_path: Path) -> None:
    """Of an executor, and of a module that is wrapped for training."""
    _, _, source = training(poptorch.optim.SGD)
    losses(source, 2)
    save_model(source, tmp_path / "weights.safetensors")
    model, _, executor = training(poptorch.optim.SGD)
    losses(executor, 2)
    with torch.no_grad():
        model.norm.weight.fill_(5)
    executor.copyWeightsToDevice()
    assert load_model(take(model, executor), tmp_path / "weights.safetensors") == ([], [])
    executor.copyWeightsToHost()
    torch.testing.assert_close(model.state_dict(), source.model.state_dict(), rtol=0, atol=0)
    assert losses(executor, 1) == losses(source, 1)


def test_inference_models(tmp_path: Path) -> None:
    model = Tied().eval()
    executor = poptorch.inferenceModel(model)
    before = executor(IDS)[0]
    save_model(executor, tmp_path / "weights.safetensors")
    with torch.no_grad():
        model.head.weight.add_(1)
    executor.copyWeightsToDevice()
    assert not torch.equal(executor(IDS)[0], before)
    load_model(executor, tmp_path / "weights.safetensors")
    assert torch.equal(executor(IDS)[0], before)


def test_names_that_do_not_fit(tmp_path: Path) -> None:
    save_model(nn.Linear(2, 1, bias=False), tmp_path / "weights.safetensors")
    executor = poptorch.inferenceModel(nn.Linear(2, 1))
    with pytest.raises(RuntimeError, match="bias"):
        load_model(executor, tmp_path / "weights.safetensors")
    assert load_model(executor, tmp_path / "weights.safetensors", strict=False) == (["bias"], [])


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    _, optimizer, executor = training()
    losses(executor, 3)
    save_checkpoint(tmp_path, executor, optimizer, epoch=2, order={"at": 4, "indices": torch.arange(3)})
    expected = losses(executor, 3)
    _, again, resumed = training()
    resumed.compile(IDS)
    rest = load_checkpoint(tmp_path, resumed, again)
    assert rest["epoch"] == 2
    assert rest["order"]["at"] == 4
    assert rest["order"]["indices"].tolist() == [0, 1, 2]
    assert losses(resumed, 3) == expected


def test_torch_reads_the_checkpoint(tmp_path: Path) -> None:
    model, optimizer, executor = training()
    losses(executor, 2)
    save_checkpoint(tmp_path / "sharded", executor, optimizer)
    executor.destroy()
    plain = Tied()
    state = {"model": plain.state_dict()}
    dcp.load(state, checkpoint_id=str(tmp_path / "sharded"))
    torch.testing.assert_close(plain.state_dict(), model.state_dict(), rtol=0, atol=0)
    dcp_to_torch_save(str(tmp_path / "sharded"), str(tmp_path / "one.pt"))
    read = torch.load(tmp_path / "one.pt", weights_only=True)
    torch.testing.assert_close(dict(read["model"]), dict(model.state_dict()), rtol=0, atol=0)
    assert read["optimizer"]["ipu_state"].keys() == optimizer.state_dict()["ipu_state"].keys()


def test_a_checkpoint_of_torch_is_read(tmp_path: Path) -> None:
    source = Tied()
    with torch.no_grad():
        source.norm.weight.fill_(2)
    dcp.save({"model": source.state_dict()}, checkpoint_id=str(tmp_path), no_dist=True)
    executor = poptorch.inferenceModel(Tied().eval())
    executor(IDS)
    assert load_checkpoint(tmp_path, executor) == {}
    torch.testing.assert_close(executor(IDS)[0], source.eval()(IDS)[0])


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    _, optimizer, executor = training()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of torch\.distributed\.checkpoint"):
        load_checkpoint(tmp_path, executor)
    save_checkpoint(tmp_path, executor)
    with pytest.raises(poptorch.Error, match="has no optimizer: it was saved without one"):
        load_checkpoint(tmp_path, executor, optimizer)
    with pytest.raises(poptorch.Error, match="'poptorch_random' is the name of an entry"):
        save_checkpoint(tmp_path, executor, poptorch_random=1)
