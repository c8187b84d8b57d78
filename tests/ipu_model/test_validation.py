"""The validation as a program: a fast part of it, and what its pages say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import poptorch
from poptorch.ipu_model import validate
from poptorch.ipu_model.calibration import EXCHANGE_CODE, KNOBS
from poptorch.ipu_model.validation.applications import APPLICATIONS, Application, Training
from poptorch.ipu_model.validation.fitting import Scaled, fitted, left_out, planned_share
from poptorch.ipu_model.validation.measurements import measurements, two_products
from poptorch.ipu_model.validation.residual import ResNet50
from poptorch.ipu_model.validation.tables import CAVEATS, Result, errors, line, number, page, picture, summary
from poptorch.ipu_model.validation.transformers import BASE, LARGE, PretrainingBert, VisionTransformer, places

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def test_vertices_are_as_fast_as_measured():
    results, _ = validate.validate("matrix vertex")
    assert len(results) == 9
    assert errors(results)[1] <= 0.02
    results, _ = validate.validate("scaled add")
    assert len(results) == 4
    assert errors(results)[1] <= 0.006  # one of four was measured with two cycles less of overhead
    assert sum(it.error == 0 for it in results) == 3


def test_the_run_of_the_vendors_model():
    results, _ = validate.validate("vendor")
    cycles, variables, memory = results
    assert abs(cycles.error) <= 0.15
    assert abs(variables.error) <= 0.2
    assert abs(memory.error) <= 0.2


def test_the_models_have_the_published_sizes():
    def parameters(model):
        return sum(it.numel() for it in model.parameters())

    with torch.device("meta"):
        assert parameters(PretrainingBert(LARGE, (3, 7, 7, 7))) == pytest.approx(334e6, rel=0.01)
        assert parameters(PretrainingBert(BASE, (0, 4, 4, 4))) == pytest.approx(109e6, rel=0.01)
        assert parameters(VisionTransformer(BASE, (3, 3, 3, 3))) == pytest.approx(86.6e6, rel=0.01)
        assert parameters(ResNet50()) == 25_557_032
    assert places((4.5, 6.5, 6.5, 6.5)).count(1) == 13


def test_the_options_have_the_published_batches():
    batches = {it.row: it.training.batch for it in APPLICATIONS}
    assert batches == {
        "1": 3200, "3": 3520, "4": 5120, "5": 1536, "9": 54_784, "11": 65_536, "13": 256, "14": 56_064, "16": 65_536,
        "22": 16_416, "23a": 3520, "23b": 5120, "23c": 10_240, "28": 65_536,
    }  # fmt: skip
    options = APPLICATIONS[4].training.options()
    assert options.replication_factor == 4
    assert {it.certainty for it in APPLICATIONS} == {"A", "B"}


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x):
        return poptorch.identity_loss(self.layer(x).square().mean(), "none")


def small(row, published):
    return Application(
        row, "a small model", "A", published, "bow", Training(4, 2, 1, (0.6,)), Small,
        lambda batch: [torch.empty(batch, 64, dtype=torch.float16)],
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip


def test_an_application_is_estimated_and_left_out():
    results = validate.applied([small("x", 1000.0), small("y", 2000.0)])
    assert [it.result.published for it in results] == [1000.0, 2000.0]
    assert results[0].result.predicted == results[1].result.predicted > 0
    assert 0 < results[0].share < 1
    assert validate.applied([small("x", 1000.0)], only="something else") == []


def test_shares_of_planned_work():
    assert 0 < planned_share(two_products()) < 1


def test_knobs_are_fitted_and_left_out():
    def scaled(published, predicted, unit="bytes", share=1.0):
        return Scaled(Result("g", "n", unit, published, predicted), EXCHANGE_CODE, share)

    assert fitted([scaled(100, 50), scaled(100, 200)]) == pytest.approx(EXCHANGE_CODE.value, rel=0.01)
    assert fitted([scaled(110, 100)]) == pytest.approx(1.1 * EXCHANGE_CODE.value, rel=0.01)
    assert fitted([scaled(100, 110, "items/s")]) == pytest.approx(1.1 * EXCHANGE_CODE.value, rel=0.01)
    first, second = left_out([scaled(100, 100), scaled(100, 125)])
    assert first.left_out_error == pytest.approx(-0.2, abs=0.01)
    assert second.left_out_error == pytest.approx(0.25, abs=0.01)
    assert left_out([scaled(100, 90)])[0].left_out is None
    half = scaled(100, 100, "items/s", share=0.5)
    assert half.error(2 * EXCHANGE_CODE.value) == pytest.approx(math.log(1 / 1.5))


def test_tables():
    results = [
        Result("memory", "one", "bytes", 100, 90, left_out=80),
        Result("application", "two", "items/s", 1e6, 2e6, "A"),
    ]
    assert "-10.0%" in line(results[0])
    assert "-20.0%" in line(results[0])
    assert number(12.34) == "12.3"
    assert (
        summary(results)[0]
        == "memory: 1 cases, median error 10.0%, worst 10.0%; each left out of the fit: median 20.0%, worst 20.0%"
    )
    text = page(results, "picture.svg")
    assert "| one | 90 | 100 | bytes | -10.0% | -20.0% |" in text
    assert "| two | 2,000,000 | 1,000,000 | items/s | +100.0% | A |" in text
    assert picture(results).count("<title>") == 2


def test_the_page_is_up_to_date():
    """It names every case and the values that knobs have now."""
    text = (DOCS / validate.PAGE).read_text(encoding="utf-8")
    assert (DOCS / validate.PICTURE).exists()
    for name in [*(it.name for it in measurements()), *(it.name for it in APPLICATIONS)]:
        assert name in text, f"run `python -m poptorch.ipu_model.validate --write docs`: {name} is missing"
    assert CAVEATS in text
    for knob in KNOBS:
        assert f"| `{knob.name}` | {knob.value:g} |" in text


def test_the_command(capsys):
    assert validate.main(["--only", "matrix vertex"]) == 0
    assert "[2048, 16] x [16, 16]" in capsys.readouterr().out
    assert validate.main(["--only", "no such case"]) == 1
