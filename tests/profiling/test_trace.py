"""Spans around everything that a compilation and a call do."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from torch import nn

import poptorch
from poptorch.compiler.pipeline import DEVICE_PASSES
from poptorch.profiling.trace import NO_TRACE, Recorder, SpanKind, Trace


class TwoStages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        poptorch.Block.start("first", ipu_id=0)
        x = torch.relu(self.first(x))
        poptorch.Block.start("second", ipu_id=1)
        return nn.functional.mse_loss(self.second(x), target)


class OneStage(TwoStages):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.second(torch.relu(self.first(x))), target)


def traced(model: nn.Module, replicas: int = 1, accumulation: int = 4, calls: int = 1) -> Recorder:
    options = poptorch.Options().replicationFactor(replicas).deviceIterations(2)
    options.Training.gradientAccumulation(accumulation)
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    executor.trace = trace = Recorder()
    rows = 2 * replicas * accumulation
    for _ in range(calls):
        executor(torch.ones(rows, 4), torch.zeros(rows, 2))
    return trace


def kinds(trace: Recorder) -> Counter[SpanKind]:
    return Counter(span.kind for span in trace.spans)


@pytest.fixture(autouse=True)
def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_GROUP", "1")


def test_every_pass_has_a_span() -> None:
    trace = traced(OneStage())
    assert [s.label for s in trace.spans if s.kind is SpanKind.PASS] == [p.name for p in DEVICE_PASSES]


def test_every_job_of_a_pipeline_has_a_span() -> None:
    trace = traced(TwoStages(), replicas=2)
    found = kinds(trace)
    assert found[SpanKind.FORWARD] == found[SpanKind.BACKWARD] == 2 * 2 * 4 * 2  # parts, iterations, steps, replicas
    assert found[SpanKind.UPDATE] == 2
    assert found[SpanKind.LEFTOVER] >= found[SpanKind.BACKWARD]  # gradients are added after the job
    assert found[SpanKind.INPUT] == found[SpanKind.OUTPUT] == 2 * 4 * 2
    jobs = {(s.kind, s.part, s.micro, s.replica) for s in trace.spans if s.kind is SpanKind.FORWARD}
    assert len(jobs) == found[SpanKind.FORWARD]
    assert {s.replica for s in trace.spans if s.kind is SpanKind.BACKWARD} == {0, 1}


def test_models_in_one_part_are_traced_too() -> None:
    found = kinds(traced(OneStage()))
    assert found[SpanKind.INPUT] == found[SpanKind.STEP] == found[SpanKind.OUTPUT] == 8
    assert found[SpanKind.UPDATE] == 2


def test_steps_that_update_during_back_propagation_are_one_span() -> None:
    found = kinds(traced(OneStage(), accumulation=1))
    assert found[SpanKind.STEP] == 2
    assert found[SpanKind.UPDATE] == 0


def test_one_micro_batch_of_inference() -> None:
    executor = poptorch.inferenceModel(nn.ReLU())
    executor(torch.ones(1))
    executor.trace = trace = Recorder()
    executor(torch.ones(1))
    assert [span.kind for span in trace.spans] == [SpanKind.INPUT, SpanKind.STEP, SpanKind.OUTPUT]


@pytest.mark.parametrize("model", [OneStage, TwoStages])
def test_spans_have_a_length_and_an_order(model: type[nn.Module]) -> None:
    trace = traced(model(), calls=2)
    assert all(span.start <= span.end for span in trace.spans)
    updates = [span for span in trace.spans if span.kind is SpanKind.UPDATE]
    assert all(a.end <= b.start for a, b in itertools.pairwise(updates))


def test_without_a_recorder_nothing_is_kept() -> None:
    executor = poptorch.inferenceModel(nn.ReLU())
    executor(torch.ones(1))
    assert executor.trace is NO_TRACE
    assert executor.trace.spans == ()
    assert not Trace().active


def test_a_recorder_can_be_cleared() -> None:
    trace = Recorder()
    with trace.span(SpanKind.EXCHANGE), pytest.raises(ValueError), trace.span(SpanKind.UPDATE):
        raise ValueError
    assert [span.kind for span in trace.spans] == [SpanKind.UPDATE, SpanKind.EXCHANGE]
    trace.clear()
    assert trace.spans == ()
