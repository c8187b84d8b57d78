"""Anchored tensors in TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poptorch


def trained(**anchors: str) -> Any:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.fc(x) ** 2, "mean")

    options, model = poptorch.Options(), WithLoss()
    for short, name in anchors.items():
        options.anchorTensor(short, name)
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    executor(torch.ones(2, 3))
    return executor


def test_scalars_and_histograms(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    executor = trained(loss="loss", gradient="Gradient___fc.weight")
    with poptorch.debug.AnchorWriter(tmp_path) as writer:
        for step in range(3):
            executor(torch.ones(2, 3))
            writer.write(executor, step)
        writer.write(executor, 3, ["loss"])
        executor(torch.full((2, 3), float("nan")))
        writer.write(executor, 4)
    log = EventAccumulator(str(tmp_path))
    log.Reload()
    tags = log.Tags()
    assert set(tags["scalars"]) == {"loss", "gradient/norm", "gradient/non_finite"}
    assert tags["histograms"] == ["gradient"]
    assert [event.step for event in log.Scalars("loss")] == [0, 1, 2, 3, 4]
    assert [event.value for event in log.Scalars("gradient/non_finite")] == [0, 0, 0, 6]


class Log:
    """Stands for TensorBoard's own writer."""

    def __init__(self, log_dir: str) -> None:
        self.entries: list[tuple[str, str, int]] = []
        written.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        assert isinstance(value, (int, float))
        self.entries.append(("scalar", name, step))

    def add_histogram(self, name: str, values: torch.Tensor, step: int) -> None:
        assert values.isfinite().all()
        self.entries.append(("histogram", name, step))

    def close(self) -> None:
        self.entries.append(("closed", "", 0))


written: list[Log] = []


def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", type(sys)("tensorboard"))
    sys.modules["torch.utils.tensorboard"].SummaryWriter = Log  # type: ignore[attr-defined]
    executor = trained(loss="loss", bias="UpdatedVar___fc.bias")
    with poptorch.debug.AnchorWriter(tmp_path) as writer:
        writer.write(executor, 7)
    assert written.pop().entries == [
        ("scalar", "loss", 7),
        ("histogram", "bias", 7),
        ("scalar", "bias/norm", 7),
        ("scalar", "bias/non_finite", 7),
        ("closed", "", 0),
    ]


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(poptorch.Error, match=r"needs TensorBoard.*pip install tensorboard"):
        poptorch.debug.AnchorWriter(tmp_path)
