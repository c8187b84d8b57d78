"""The lines of the log that tell where captured operations come from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from poptorch.experimental import IPUContext

HERE = Path(__file__).name


def function(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (3,))


LINE = function.__code__.co_firstlineno + 1


@pytest.fixture(autouse=True)
def _verbose() -> None:
    poptorch.setLogLevel("DEBUG")  # back to normal after each test


def logged(compiler: poptorch.Compiler, options: poptorch.Options, capfd: pytest.CaptureFixture[str]) -> list[str]:
    IPUContext(function, compiler=compiler, options=options)(torch.ones(2, 3))
    lines = capfd.readouterr().err.splitlines()
    wanted = "was lowered to" if compiler is poptorch.Compiler.PopART else r"poptorch\.native_layer_norm"
    return [line for line in lines if re.search(wanted, line)]


def test_lines_of_the_user(capfd: pytest.CaptureFixture[str]) -> None:
    (line,) = logged(poptorch.Compiler.PopART, poptorch.Options(), capfd)
    assert re.search(rf"{HERE}:{LINE} .*was lowered to native_layer_norm", line)
    (line,) = logged(poptorch.Compiler.MLIR, poptorch.Options(), capfd)
    assert re.search(rf"poptorch\.native_layer_norm .*{HERE}:{LINE}", line)


def test_lines_of_torch(capfd: pytest.CaptureFixture[str]) -> None:
    options = poptorch.Options().sourceLocationExcludes([])
    (line,) = logged(poptorch.Compiler.PopART, options, capfd)
    assert re.search(r"torch/nn/functional\.py:\d+ .*was lowered to", line)
    (line,) = logged(poptorch.Compiler.MLIR, options, capfd)
    assert re.search(r"poptorch\.native_layer_norm .*torch/nn/functional\.py:\d+", line)


def test_no_lines(capfd: pytest.CaptureFixture[str]) -> None:
    options = poptorch.Options()
    options.appendToLocationExcludes("/", "<")
    (line,) = logged(poptorch.Compiler.PopART, options, capfd)
    assert ".py:" not in line
    (line,) = logged(poptorch.Compiler.MLIR, options, capfd)
    assert ".py:" not in line
    assert line.endswith("[unknown]")


def test_wrapped_models_log_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    poptorch.inferenceModel(Model())(torch.ones(2, 3))
    assert re.search(rf"{HERE}:{LINE} .*was lowered to native_layer_norm", capfd.readouterr().err)
