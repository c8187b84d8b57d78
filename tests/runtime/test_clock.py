"""One record for each job: counters, pictures and spans are made of the same ones."""

from __future__ import annotations

import torch

import poptorch
from poptorch.enums import OutputMode
from poptorch.profiling.trace import Recorder, SpanKind
from poptorch.program.loop import Loop, MicroBatch
from poptorch.runtime.clock import CallClock, JobRecord, whole_record
from poptorch.runtime.tasks import Task
from poptorch.schedule import Job, Kind

A, B = MicroBatch(0, 0, 0), MicroBatch(1, 0, 0)


def clock(mode: OutputMode = OutputMode.All, whole: bool = True) -> CallClock:
    made = CallClock(Loop(device_iterations=2, output_mode=mode), num_inputs=2, num_outputs=1, whole=whole)
    made.begin()
    return made


def stage(kind: Kind, first: MicroBatch, start: float, **moves: tuple[float, float]) -> JobRecord:
    task = Task(0, Job(first.iteration, kind, 0), 0, 0, 0, 0)
    return JobRecord(task, 1, start, start + 2, start + 1, 0, (first,), **moves)


def test_groups_have_the_times_of_their_records_once_for_each_micro_batch() -> None:
    made = clock()
    made.add([whole_record((A, B), 1.0, 2.0, 3.0, 4.0)])
    assert made.counters() == {
        "input": [[1.0, 1.0]] * 2,
        "input_complete": [[2.0, 2.0]] * 2,
        "output": [[3.0, 3.0]],
        "output_complete": [[4.0, 4.0]],
    }
    kinds = [(span.kind, span.start, span.end) for span in made.spans()]
    assert kinds == [(SpanKind.INPUT, 1.0, 2.0), (SpanKind.STEP, 2.0, 3.0), (SpanKind.OUTPUT, 3.0, 4.0)]


def test_of_several_jobs_of_a_micro_batch_the_first_input_and_the_last_output_count() -> None:
    made = clock(whole=False)
    made.add([stage(Kind.FORWARD, A, 1.0, inputs=(1.0, 1.5)), stage(Kind.FORWARD, B, 2.0, inputs=(2.0, 2.5))])
    made.add([stage(Kind.BACKWARD, A, 4.0, inputs=(4.0, 4.5), outputs=(5.0, 5.5))])
    made.add([stage(Kind.BACKWARD, A, 6.0, outputs=(6.0, 6.5)), stage(Kind.BACKWARD, B, 8.0, outputs=(8.0, 8.5))])
    found = made.counters()
    assert found["input"][0] == [1.0, 2.0]
    assert found["input_complete"][0] == [1.5, 2.5]
    assert found["output"] == [[5.0, 8.0]]
    assert found["output_complete"] == [[6.5, 8.5]]
    leftovers = [span for span in made.spans() if span.kind is SpanKind.LEFTOVER]
    assert [(span.start, span.end) for span in leftovers] == [(r.released, r.end) for r in made.records]


def test_only_what_is_returned_has_times_and_silent_calls_have_none() -> None:
    final = clock(OutputMode.Final)
    final.add([whole_record((m,), *times) for m, times in ((A, (1.0, 2.0, 3.0, 4.0)), (B, (5.0, 6.0, 7.0, 8.0)))])
    assert final.counters()["output"] == [[7.0]]
    final.begin(silent=True)
    final.add([whole_record((A,), 1.0, 2.0, 3.0, 4.0)])
    assert final.counters() == {"input": [[], []], "input_complete": [[], []], "output": [[]], "output_complete": [[]]}


def test_what_other_processes_did_has_happened_by_the_end() -> None:
    made = clock(whole=False)
    made.add([stage(Kind.FORWARD, A, 1.0, inputs=(1.0, 1.5))])
    made.complete(9.0)
    assert made.counters()["input"][0] == [1.0, 9.0]
    assert made.counters()["output_complete"] == [[9.0, 9.0]]


def test_a_call_of_one_micro_batch_has_a_record_too() -> None:
    executor = poptorch.inferenceModel(torch.nn.Linear(2, 2))
    executor.trace = Recorder()
    executor(torch.ones(1, 2))
    counters = executor.getPerfCounters()
    (record,) = executor.session.engine.clock.records
    assert counters["input"] == [[record.start]]
    assert counters["output_complete"] == [[record.end]]
    jobs = [span for span in executor.trace.spans if span.kind is SpanKind.STEP]
    assert [(span.start, span.end) for span in jobs] == [(record.start, record.end)]
    assert "0F" in executor.drawSchedule()
