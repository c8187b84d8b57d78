"""The compiler's input, as environment variables ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch
from poptorch import _logging


class Doubled(nn.Module):
    def forward(self, x):
        return x.detach() * 2


def compiled() -> poptorch.PoplarExecutor:
    executor = poptorch.inferenceModel(Doubled())
    executor.compile(torch.ones(2))
    return executor


@pytest.mark.parametrize(
    ("chosen", "written"), [("new/my_model.proto", "new/my_model.proto"), ("new", "new/model.proto")]
)
def test_the_captured_program_is_saved(monkeypatch, tmp_path: Path, chosen: str, written: str) -> None:
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / chosen))
    compiled()
    assert "aten::detach" in (tmp_path / written).read_text()  # which the first pass removes


def test_a_binary_export_is_text_and_says_so(monkeypatch, tmp_path: Path, caplog) -> None:
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / "it.proto"))
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_AS_BINARY", "1")
    compiled()
    assert "POPTORCH_EXPORT_PROTO_AS_BINARY has no effect" in caplog.text
    assert (tmp_path / "it.proto").read_text().startswith("program (inference)")


def test_a_picture_for_graphviz(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POPTORCH_MLIR_DOT_FILE", str(tmp_path / "graph.dot"))
    compiled()
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph program {")
    assert '"detach" -> "mul";' in text
    assert "mul.Tensor" in text


def traced(capfd: pytest.CaptureFixture[str]) -> str:
    poptorch.setLogLevel("TRACE")
    compiled()
    return capfd.readouterr().err.partition("Captured graph:\n")[2]


def test_the_trace_log_shows_the_end_of_the_graph(monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("POPTORCH_MAX_GRAPH_LEN", "1")
    assert traced(capfd).startswith("[...truncated...]\n  return ")


def test_the_trace_log_shows_a_short_graph_in_full(capfd: pytest.CaptureFixture[str]) -> None:
    assert traced(capfd).startswith("program (inference): ")


def test_debug_ir_shows_the_program_that_was_compiled(monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("POPTORCH_LOG_LEVEL", "DEBUG_IR")
    _logging.apply_environment()
    try:
        executor = compiled()
    finally:
        monkeypatch.delenv("POPTORCH_LOG_LEVEL")
        _logging.apply_environment()
    assert f"Program:\n{executor.program}\n" in capfd.readouterr().err
