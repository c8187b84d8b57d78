"""Checkpoints that each process writes and reads a part of."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed import checkpoint

import poptorch
import processes
from poptorch.integrations import shard_files
from poptorch.integrations.sharded_checkpoint import INDEX, load_sharded, save_sharded

PROGRAM = processes.TESTS / "checkpoint_cases.py"


def run(count: int, case: str, folder: Path, first: int, last: int) -> list[dict[str, Any]]:
    processes.run(PROGRAM, count, case, str(folder), str(first), str(last))
    return [torch.load(folder / f"{last}-{process}.pt") for process in range(count)]


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", [pytest.param("whole", marks=pytest.mark.slow), "sharded"])
def test_a_job_goes_on_with_other_numbers_of_processes(case: str, tmp_path: Path) -> None:
    """From two processes to three to one, as if nothing had happened."""
    two = run(2, case, tmp_path, 0, 1)
    three = run(3, case, tmp_path, 1, 2)
    (one,) = run(1, case, tmp_path, 2, 3)
    for process in two[1:]:
        assert_equal(process["state"], two[0]["state"])
    for process in three:
        assert_equal(process["loaded"], two[0]["state"])
        assert_equal(process["state"], three[0]["state"])
    assert_equal(one["loaded"], three[0]["state"])
    assert all(value == 3 for name, value in one["state"].items() if name.startswith("Step___"))
    (tmp_path / "alone").mkdir()
    (alone,) = run(1, case, tmp_path / "alone", 0, 3)
    for part in ("state", "model"):
        torch.testing.assert_close(one[part], alone[part], rtol=1e-4, atol=1e-6)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("case", "counts"),
    [
        ("sharded stages", [2, 1]),
        pytest.param("stages", [2, 4, 1], marks=pytest.mark.slow),
        pytest.param("sharded stages", [2, 4, 1], marks=pytest.mark.slow),
    ],
)
def test_stages_move_to_other_processes(case: str, counts: list[int], tmp_path: Path) -> None:
    """From processes that share each replica to others, and to one that has all stages."""
    before: dict[str, torch.Tensor] = {}
    for step, count in enumerate(counts):
        found = run(count, case, tmp_path, step, step + 1)
        for process in found:
            for name, value in process["loaded"].items() if step else ():
                assert torch.equal(value, before[name]), name
        assert count == 1 or not found[0]["state"].keys() & found[1]["state"].keys()
        before = {name: value for process in found for name, value in process["state"].items()}
    (tmp_path / "alone").mkdir()
    (alone,) = run(1, case, tmp_path / "alone", 0, len(counts))
    for part in ("state", "model"):
        torch.testing.assert_close(found[0][part], alone[part], rtol=1e-4, atol=1e-6)


class WithLoss(nn.Module):
    """Complex weights, halves, a buffer that is in no dictionary, and one that the program does not use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(6, 3)
        self.modes = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.unused = nn.Parameter(torch.randn(2, 2))
        self.register_buffer("counter", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counter.add_(1)
        x = torch.fft.irfft(torch.fft.rfft(x) * self.modes, n=6)
        return poptorch.identity_loss(self.fc(x).pow(2), reduction="mean")


def make(optimizer: str = "AdamW") -> tuple[WithLoss, torch.optim.Optimizer, poptorch.PoplarExecutor]:
    model = WithLoss()
    made = getattr(poptorch.optim, optimizer)(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, poptorch.Options().randomSeed(1), made)
    training.compile(torch.ones(2, 6))
    return model, made, training


def test_training_goes_on_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "FILE_BYTES", 64)
    model, _, training = make()
    x = torch.randn(2, 6)
    training(x)
    save_sharded(tmp_path / "a" / "b", training, {"step": 1, "more": [1.5, None, {"a": "b"}]})
    losses = [float(training(x)) for _ in range(2)]
    (data,) = (path for path in (tmp_path / "a" / "b").iterdir() if path.name != INDEX)
    assert len(list((data / "model").iterdir())) > 1
    again, _, other = make()
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    other.copyWeightsToDevice()
    assert load_sharded(tmp_path / "a" / "b", other) == {"step": 1, "more": [1.5, None, {"a": "b"}]}
    assert int(again.counter) == 1
    assert [float(other(x)) for _ in range(2)] == losses
    assert_equal({**again.state_dict()}, {**model.state_dict()})


def test_weights_are_readable_by_others(tmp_path: Path) -> None:
    model, _, training = make()
    training(torch.ones(2, 6))
    save_sharded(tmp_path, training)
    save_sharded(tmp_path, training)
    (data,) = tmp_path.glob("data-*")  # that of the first is gone
    (file,) = (data / "model").iterdir()
    assert torch.equal(load_file(file)["fc.weight"], model.fc.weight)
    state = {"fc.weight": torch.zeros(3, 6)}
    checkpoint.load(state, storage_reader=checkpoint.HuggingFaceStorageReader(str(data / "model")), no_dist=True)
    assert torch.equal(state["fc.weight"], model.fc.weight)


def saved(folder: Path) -> Path:
    _, _, training = make()
    save_sharded(folder, training)
    return next(folder.glob("data-*"))


def damage(how: str, folder: Path, data: Path) -> None:
    index, file = folder / INDEX, next((data / "model").iterdir())
    said = json.loads(index.read_text())
    if how == "gone":
        file.unlink()
    elif how == "shorter":
        os.truncate(file, file.stat().st_size - 8)
    elif how == "garbage":
        file.write_bytes(b"\xff" * file.stat().st_size)
    elif how == "one more":
        shutil.copy(file, file.with_name("shard-00009-model-00001-of-00001.safetensors"))
    elif how == "a link":
        file.rename(folder / "elsewhere")
        file.symlink_to(folder / "elsewhere")
    elif how == "no index":
        index.write_text("{" * 100_000)
    elif how == "another place":
        index.write_text(json.dumps({**said, "data": "../elsewhere"}))
    elif how == "wrong types":
        index.write_text(json.dumps({**said, "random": "1"}))
    elif how == "endless":
        index.unlink()
        index.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    "how",
    ["gone", "shorter", "garbage", "one more", "a link", "no index", "another place", "wrong types", "endless"],
)
def test_damaged_checkpoints_are_named_and_change_nothing(how: str, tmp_path: Path) -> None:
    damage(how, tmp_path, saved(tmp_path))
    model, _, training = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(poptorch.Error, match=str(tmp_path)):
        load_sharded(tmp_path, training)
    assert_equal({**model.state_dict()}, before)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    _, optimizer, training = make("SGD")
    with pytest.raises(poptorch.Error, match="was written with AdamW, not with SGD"):
        load_sharded(tmp_path, training)
    training.destroy()
    model = WithLoss()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.7)
    optimizer.variable_attrs.markAsConstant("weight_decay")
    training = poptorch.trainingModel(model, optimizer=optimizer)
    training.compile(torch.ones(2, 6))
    with pytest.raises(poptorch.Error, match="weight decays"):
        load_sharded(tmp_path, training)
    assert optimizer.param_groups[0]["lr"] == 0.5
    model = WithLoss()
    model.fc = nn.Linear(6, 4)
    training = poptorch.trainingModel(model, optimizer=poptorch.optim.AdamW(model.parameters(), lr=0.01))
    training.compile(torch.ones(2, 6))
    with pytest.raises(poptorch.Error, match=r"optimizer/Accl1___fc.weight has the shape \[18\] .* needs \[24\]"):
        load_sharded(tmp_path, training)


def test_a_save_that_fails_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    _, _, training = make()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shard_files, "write", full)
        with pytest.raises(poptorch.Error, match="No space left"):
            save_sharded(tmp_path, training)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(poptorch.Error, match="cannot be written as JSON"):
        save_sharded(tmp_path, training, {"when": object()})
    with pytest.raises(poptorch.Error, match="tuples become lists"):
        save_sharded(tmp_path, training, {"shape": (1, 2)})
    with pytest.raises(FileNotFoundError, match="no checkpoint of save_sharded"):
        load_sharded(tmp_path / "nothing", training)
