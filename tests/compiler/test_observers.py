"""Who looks on while a program is lowered."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from poptorch.compiler.pipeline import DEVICE_PASSES

NAMES = ["captured", *(step.name.replace(" ", "-") for step in DEVICE_PASSES)]


class Doubled(nn.Module):
    def forward(self, x):
        return x.detach() * 2


def test_the_program_after_every_pass(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("POPTORCH_DUMP", str(tmp_path / "new" / "dump"))
    executor = poptorch.inferenceModel(Doubled())
    executor.compile(torch.ones(2))
    folder = tmp_path / "new" / "dump" / "inference-1"
    files = sorted(file for file in folder.iterdir() if file.is_file())
    assert [f.name for f in files] == [f"{number:02}-{name}.txt" for number, name in enumerate(NAMES)]
    texts = {f.name[3:-4]: f.read_text() for f in files}
    assert "aten::detach" in texts["captured"]
    assert "aten::detach" not in texts["simplify"]
    changed = [name for name, text in texts.items() if text != "unchanged\n"]
    assert changed == ["captured", "simplify"]
    assert texts["simplify"] == f"{executor.program}\n"


def test_every_model_has_a_folder_of_its_own(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("POPTORCH_DUMP", str(tmp_path))
    poptorch.inferenceModel(Doubled()).compile(torch.ones(2))
    poptorch.inferenceModel(Doubled()).compile(torch.ones(2))

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x):
            for index, layer in enumerate(self.layers):
                poptorch.Block.start(str(index), ipu_id=index)
                x = torch.sigmoid(layer(x))
            return poptorch.identity_loss(x.sum(), reduction="none")

    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    poptorch.trainingModel(Trained(), options).compile(torch.ones(4, 4))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["inference-1", "inference-2", "training-1"]
    host = sorted(f.name for f in (tmp_path / "training-1" / "host").iterdir())
    assert host == [
        "00-level.txt", "01-group-micro-batches.txt", "02-assign-slots.txt", "03-recompute.txt",
        "04-isolate-writes.txt",
        "05-divide.txt", "06-matrix-products.txt", "07-stage-code.txt", "08-update-code.txt",
        "09-update-in-backward.txt",
    ]  # fmt: skip


def test_nothing_is_written_unasked(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    poptorch.inferenceModel(Doubled()).compile(torch.ones(2))
    assert list(tmp_path.iterdir()) == []


def test_a_line_of_the_log_for_every_pass(capfd: pytest.CaptureFixture[str]) -> None:
    poptorch.setLogLevel("DEBUG")
    poptorch.inferenceModel(Doubled()).compile(torch.ones(2))
    lines = [line[line.index("Pass ") :] for line in capfd.readouterr().err.splitlines() if "Pass " in line]
    assert [line.partition(":")[0] for line in lines] == [f"Pass {step.name}" for step in DEVICE_PASSES]
    assert any(line.startswith("Pass simplify: removed 1 operations (") for line in lines)
