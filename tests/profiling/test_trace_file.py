"""The trace that PVTI_OPTIONS asks for: one valid file for each process, whatever happens to the program."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import preloaded
from poptorch.profiling import trace_file
from poptorch.profiling.requests import trace_request
from poptorch.profiling.trace import SpanKind, TraceSpan
from poptorch.profiling.trace_file import TraceFile, entry_of

PROGRAM = """
import multiprocessing, sys, threading
import torch, poptorch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)
    def forward(self, x, label):
        poptorch.Block.start("first", ipu_id=0)
        x = torch.relu(self.first(x))
        poptorch.Block.start("second", ipu_id=1)
        y = self.second(x)
        return y, nn.functional.cross_entropy(y, label)

channel = poptorch.profiling.Channel("mine")

def child():
    with channel.tracepoint("in a child"):
        pass

def other_thread():
    with channel.tracepoint("in a thread"):
        pass

def main(what):
    model = Two()
    options = poptorch.Options().deviceIterations(2).replicationFactor(2)
    options.Training.gradientAccumulation(4)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.ones(32, 4), torch.arange(32) % 3)
    with channel.tracepoint("epoch"):
        for x, label in poptorch.DataLoader(options, data, batch_size=2):
            with channel.tracepoint("batch"):
                training(x, label)
    inference = poptorch.inferenceModel(nn.Linear(4, 3))
    inference(torch.ones(2, 4))
    thread = threading.Thread(target=other_thread, name="my thread")
    thread.start()
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
    if what == "fail":
        with channel.tracepoint("fails"):
            training(x, label + 9)
    thread.join()

if __name__ == "__main__":
    main(sys.argv[1])
"""


def run(tmp_path: Path, what: str, options: str | None) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {"POPTORCH_GROUP": "1"} | ({} if options is None else {"PVTI_OPTIONS": options})
    return preloaded.run([program, what], cwd=tmp_path, env=environment)


def events_of(path: Path) -> list[dict[str, Any]]:
    events = json.loads(path.read_text())
    assert isinstance(events, list)
    return events


ROUNDING = 2e-3
"""Microseconds: a start and a duration are rounded to a nanosecond each."""


def assert_nested(events: list[dict[str, Any]]) -> None:
    """On each thread, two spans are one inside of the other or one after the other."""
    by_thread = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_thread[event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for spans in by_thread.values():
        open_spans: list[tuple[float, float, str]] = []
        for start, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_spans and open_spans[-1][1] <= start + ROUNDING:
                open_spans.pop()
            assert not open_spans or end <= open_spans[-1][1] + ROUNDING, (name, open_spans[-1])
            open_spans.append((start, end, name))


@pytest.mark.parametrize("what", ["pass", "fail"])
def test_a_program_with_two_models_threads_and_processes(what: str, tmp_path: Path) -> None:
    done = run(tmp_path, what, json.dumps({"enable": "true", "directory": str(tmp_path / "deep" / "traces")}))
    assert (done.returncode == 0) is (what == "pass"), done.stderr
    files = {path: events_of(path) for path in (tmp_path / "deep" / "traces").iterdir()}
    assert len(files) == 3  # the program and its two children
    for path, events in files.items():
        assert {event["pid"] for event in events} == {int(path.stem.rpartition("_")[2])}
        assert_nested(events)
    events = max(files.values(), key=len)
    names = {event["name"] for event in events}
    for name in (
        "poptorch.trainingModel.compile", "poptorch.trainingModel.__call__", "poptorch.trainingModel.capture",
        "poptorch.trainingModel.simplify", "poptorch.trainingModel.forward", "poptorch.trainingModel.backward",
        "poptorch.trainingModel.update", "poptorch.trainingModel.input", "poptorch.inferenceModel.step",
        "poptorch.DataLoader.__next__", "mine.epoch", "mine.batch", "mine.in a thread",
    ):  # fmt: skip
        assert name in names, name
    assert ("mine.fails" in names) is (what == "fail")
    jobs = [event for event in events if event["name"].endswith(".forward")]
    about = {(e["args"]["part"], e["args"]["micro_batch"], e["args"]["replica"]) for e in jobs}
    assert {(part, micro, replica) for part in (0, 1) for micro in range(8) for replica in (0, 1)} <= about
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {event["tid"] for event in events if event["ph"] != "M"} <= threads.keys()
    assert "MainThread" in threads.values()
    begun = [event["id"] for event in events if event["ph"] == "b"]
    assert sorted(begun) == sorted(event["id"] for event in events if event["ph"] == "e")
    others = [events for events in files.values() if len(events) < 10]
    assert all("mine.in a child" in {event["name"] for event in events} for events in others)


def test_nothing_when_off(tmp_path: Path) -> None:
    done = run(tmp_path, "pass", None)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_a_file_grows_and_is_always_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "_FLUSH_AT", 3)
    file = TraceFile(tmp_path / "new")
    for number in range(7):
        kind = SpanKind.INPUT if number == 2 else SpanKind.POINT
        file.add(entry_of("mine", 1, TraceSpan(kind, number, number + 0.5, label=f"span {number}")))
        if number == 1:
            assert file.path is None
        elif number > 1:
            assert file.path is not None
            assert events_of(file.path)
    file.flush()
    assert file.path is not None
    events = [event for event in events_of(file.path) if event["ph"] != "M"]
    assert [event["name"] for event in events if event["ph"] in "Xb"] == [f"mine.span {number}" for number in range(7)]
    starts = [event["ts"] for event in events if event["ph"] in "Xb"]
    assert all(a < b for a, b in itertools.pairwise(starts))
    file.flush()
    assert len(list((tmp_path / "new").iterdir())) == 1


@pytest.mark.parametrize("name", ['with "quotes"', "back\\slash", "two\nlines", "ünïcode {}", ""])
def test_any_name_will_do(name: str, tmp_path: Path) -> None:
    file = TraceFile(tmp_path)
    file.add(entry_of(name, 1, TraceSpan(SpanKind.POINT, 0, 1, label=name)))
    file.flush()
    assert file.path is not None
    (event,) = (event for event in events_of(file.path) if event["ph"] == "X")
    assert (event["name"], event["cat"], event["dur"]) == (f"{name}.{name or 'point'}", name, 1e6)


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "taken").write_text("a file")
    file = TraceFile(tmp_path / "taken")
    for _ in range(2):
        file.add(entry_of("mine", 1, TraceSpan(SpanKind.POINT, 0, 1)))
        file.flush()
    assert caplog.text.count("cannot be written") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, False), ("", False), ("{}", False), ('{"enable":"true"}', True), ('{"enable": true}', True)],
)
def test_requests(text: str | None, expected: bool, caplog: pytest.LogCaptureFixture) -> None:
    assert trace_request(text).enabled is expected
    assert not caplog.text


@pytest.mark.parametrize(
    ("text", "enabled", "warning"),
    [
        ("enable", False, "PVTI_OPTIONS must be a JSON object"),
        ("[1]", False, "it is not an object"),
        ('{"enable":"true","colour":"red"}', True, "the key 'colour' is unknown"),
        ('{"enable":"maybe"}', False, "the key 'enable' is 'maybe'"),
        ('{"enable":"true","directory":3}', True, "the key 'directory' is 3"),
    ],
)
def test_requests_that_are_wrong(text: str, enabled: bool, warning: str, caplog: pytest.LogCaptureFixture) -> None:
    assert trace_request(text).enabled is enabled
    assert warning in caplog.text
