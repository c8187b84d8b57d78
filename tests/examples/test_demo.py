"""What ``make demo`` shows is true."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import torch

import preloaded

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def shown() -> subprocess.CompletedProcess[str]:
    return preloaded.run([DEMO])


def test_it_succeeds_without_a_progress_bar_in_logs(shown: subprocess.CompletedProcess[str]) -> None:
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""


def test_both_loss_curves_are_equal_and_fall(shown: subprocess.CompletedProcess[str]) -> None:
    rows = re.findall(r"^ +\d+ +(\d\.\d{4}) +(\d\.\d{4})$", shown.stdout, re.MULTILINE)
    assert len(rows) >= 5
    for ours, theirs in rows:
        assert abs(float(ours) - float(theirs)) < 1.5e-4  # the last digit may be rounded the other way
    assert float(rows[-1][0]) < float(rows[0][0]) / 10


def test_the_accuracy_is_above_95_percent(shown: subprocess.CompletedProcess[str]) -> None:
    found = re.search(r"never seen: (\d+\.\d)%", shown.stdout)
    assert found is not None
    assert float(found[1]) > 95


def test_it_shows_what_the_ipu_model_says(shown: subprocess.CompletedProcess[str]) -> None:
    for part in ("throughput", "fullest tile", "bound by"):
        assert part in shown.stdout


def test_it_names_a_page_that_exists(shown: subprocess.CompletedProcess[str], demo: ModuleType) -> None:
    path = shown.stdout.strip().splitlines()[-1].rpartition(": ")[2]
    assert Path(path) == demo.REPORTS / "training" / "report.html"
    assert Path(path).is_file()


def test_the_data_are_reproducible_and_of_all_classes(demo: ModuleType) -> None:
    images, labels = demo.draw_digits(200, torch.Generator().manual_seed(3)).tensors
    again, _ = demo.draw_digits(200, torch.Generator().manual_seed(3)).tensors
    assert torch.equal(images, again)
    assert images.shape == (200, 1, demo.SIZE, demo.SIZE)
    assert set(labels.tolist()) == set(range(10))


def test_the_comparison_with_pytorch_can_fail(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    learning_rates = iter([0.02, 0.03])

    def unequal(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=next(learning_rates))

    monkeypatch.setattr(demo, "optimizer_of", unequal)
    monkeypatch.setattr(demo, "EPOCHS", 2)
    monkeypatch.setattr(demo, "REPORTS", tmp_path)
    with pytest.raises(AssertionError, match="is not"):
        demo.train(demo.Classifier(), demo.draw_digits(256, torch.Generator().manual_seed(0)))
