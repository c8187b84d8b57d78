"""``drawSchedule``: text, SVG and PNG."""

from __future__ import annotations

import builtins
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from matplotlib import image
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from parallel_models import STRATEGIES, Perceptron, make_options, train

import poptorch
from host_code import runner_of
from poptorch.runtime import gantt
from poptorch.runtime.clock import JobRecord
from poptorch.runtime.tasks import Task
from poptorch.schedule import Job, Kind


@pytest.fixture(scope="module")
def pipelined():
    options = make_options(poptorch.PipelinedExecution(), replicas=2, iterations=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POPTORCH_GROUP", "1")
        return train(Perceptron, (0, 1, 2, 3), options)[2]


def test_ideal_and_measured_as_text(pipelined):
    text = pipelined.drawSchedule()
    assert text.startswith("ideal, 27 % idle\nIPU0 | 0F 1F 2F 3F .  .  .  0B 4F 1B")
    assert "measured, " in text
    assert "IPU3 of replica 1 " in text


def test_everything_that_should_run_was_measured(pipelined):
    ideal, spans = pipelined.session.engine.schedule()
    jobs = {job for tick in ideal for job in tick.jobs if job is not None}
    assert {(s.task.job, s.task.replica) for s in spans} == {(job, r) for job in jobs for r in (0, 1)}
    records = pipelined.session.engine.clock.records
    assert {record.members[0].iteration for record in records} == {0, 1}
    for span in spans:
        assert span.start <= span.end


def test_the_measured_order_respects_the_data(pipelined):
    _, spans = pipelined.session.engine.schedule()
    by_index = {s.task.index: s for s in spans}
    for index, needed in enumerate(runner_of(pipelined).graph.waits_for):
        for other in needed:
            assert by_index[other].released <= by_index[index].start


def test_svg(pipelined, tmp_path):
    path = tmp_path / "schedule.svg"
    pipelined.drawSchedule(path)
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(t.startswith("ideal: 22 ticks, 27% idle") for t in texts)
    assert any(t.startswith("measured, ") for t in texts)
    assert {"forward", "backward", "IPU3 of replica 1"} <= set(texts)


def test_text_file(pipelined, tmp_path):
    path = tmp_path / "schedule.txt"
    text = pipelined.drawSchedule(str(path))
    assert path.read_text(encoding="utf-8") == text + "\n"


def test_png_is_a_picture(pipelined, tmp_path):
    path = tmp_path / "schedule.png"
    pipelined.drawSchedule(path)
    pixels = image.imread(path)
    height, width, channels = pixels.shape
    assert (width, channels) == (960, 4)
    assert height > 300
    colours = {tuple(round(255 * c) for c in colour) for colour in np.unique(pixels[..., :3].reshape(-1, 3), axis=0)}
    assert {(0x4C, 0x8D, 0xD6), (0xE3, 0x91, 0x3D)} <= colours, "forward and backward bars"


def test_png_rows_are_where_their_labels_say():
    """Row 1 starts before row 0: the order of appearance is not the order of rows."""
    chart = gantt.Chart(
        "measured",
        (
            gantt.Bar("IPU1", "0F", gantt.Style.FORWARD, 0.0, 2.0, (1,)),
            gantt.Bar("IPU0", "0B", gantt.Style.BACKWARD, 2.0, 4.0, (0,)),
        ),
        "ms",
    )
    axis = Figure().subplots()
    gantt.png_chart(chart, axis)
    rows = {label.get_text(): label.get_position()[1] for label in axis.get_yticklabels()}
    assert list(rows) == ["IPU0", "IPU1"]
    bars = {to_hex(p.get_facecolor()): (p.get_y() + p.get_height() / 2, p.get_x(), p.get_width()) for p in axis.patches}
    assert bars["#4c8dd6"] == pytest.approx((rows["IPU1"], 0.0, 2.0))
    assert bars["#e3913d"] == pytest.approx((rows["IPU0"], 2.0, 2.0))
    assert {t.get_text(): t.get_position() for t in axis.texts} == {
        "0F": (1.0, rows["IPU1"]),
        "0B": (3.0, rows["IPU0"]),
    }


def test_short_jobs_show_their_letter():
    spans = [
        JobRecord(Task(0, Job.parse("10F@0"), 0, 0, 0, 0), 0, 0.0, 0.001, 0.001),
        JobRecord(Task(1, Job.parse("10B@0"), 0, 0, 1, 1), 0, 0.001, 0.070, 0.070),
        JobRecord(Task(2, Job.parse("11F@0"), 0, 0, 0, 2), 0, 0.070, 0.072, 0.072),
    ]
    assert gantt.as_text([], spans).splitlines()[-1] == "IPU0 | F10B" + "-" * 66 + "F-"


def test_short_jobs_that_are_both_passes_do_not_look_like_a_forward_pass():
    spans = [
        JobRecord(Task(0, Job.parse("0F@0"), 0, 0, 0, 0, whole=True), 0, 0.0, 0.001, 0.001),
        JobRecord(Task(1, Job.parse("1F@0"), 0, 0, 0, 1, whole=True), 0, 0.001, 0.072, 0.072),
    ]
    assert gantt.as_text([], spans).splitlines()[-1] == "IPU0 | *1FB" + "-" * 68


def test_png_without_matplotlib_says_what_to_install(pipelined, tmp_path, monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(poptorch.Error, match=r"needs matplotlib: install it with `pip install poptorch\[report\]`"):
        pipelined.drawSchedule(tmp_path / "schedule.png")


def test_unknown_format(pipelined):
    with pytest.raises(poptorch.Error, match=r"the suffix must be one of \.svg, \.png, \.txt"):
        pipelined.drawSchedule("schedule.bmp")


def test_phases_show_their_loads():
    ipus, make = STRATEGIES["parallel phased"]
    model = train(Perceptron, ipus, make_options(make(), accumulation=1))[2]
    text = model.drawSchedule()
    assert "IPU0 | 0L@0 0F@0 0L@2 0F@2 .    .    0B@2 0L@0 0B@0 0S@0" in text
    chart = gantt.measured_chart(model.session.engine.schedule()[1])
    assert {"0F@0", "0F@3", "0L@2", "0S@1"} <= {bar.label for bar in chart.bars}, "measured jobs name their phase"


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_model_in_one_part_is_measured_too(replicas):
    text = train(Perceptron, None, make_options(accumulation=2, replicas=replicas))[2].drawSchedule()
    assert text.startswith("ideal, 0 % idle\nIPU0 | 0F 0B 1F 1B\nmeasured, ")
    assert text.count("IPU0 of replica" if replicas > 1 else "\nIPU0 |") == 2


def test_replicas_of_a_model_in_one_part_show_both_passes():
    model = train(Perceptron, None, make_options(accumulation=2, replicas=2))[2]
    ideal, measured, *_ = model.drawSchedule().partition("measured")
    assert ideal == "ideal, 0 % idle\nIPU0 | 0F 0B 1F 1B\n"
    assert measured
    chart = gantt.measured_chart(model.session.engine.schedule()[1])
    assert {bar.label for bar in chart.bars} <= {"0FB", "1FB", "0-1FB"}
    assert chart.rows[0] == "IPU0 of replica 0"
    assert [style.title for style in chart.styles] == ["forward and backward"]
    assert "forward and backward" in gantt.as_svg([chart])


def test_inference_in_one_part_is_a_forward_pass():
    options = poptorch.Options().deviceIterations(2).replicationFactor(2)
    model = poptorch.inferenceModel(Perceptron(), options)
    model(torch.ones(8, 8))
    assert model.drawSchedule().startswith("ideal, 0 % idle\nIPU0 | 0F 1F\n")
    chart = gantt.measured_chart(model.session.engine.schedule()[1])
    assert [style.title for style in chart.styles] == ["forward"]


def test_before_compilation():
    model = poptorch.inferenceModel(Perceptron())
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        model.drawSchedule()


def test_jobs_of_one_ipu_that_overlap_have_rows_of_their_own():
    job = Job(0, Kind.FORWARD, 0)
    times = [(0.0, 2.0), (1.0, 3.0), (2.0, 4.0)]
    spans = [JobRecord(Task(i, job, 0, 0, 0, i), i % 2, start, end, end) for i, (start, end) in enumerate(times)]
    chart = gantt.measured_chart(spans)
    assert chart.rows == ["IPU0", "IPU0 (2)"]
    assert [bar.row for bar in chart.bars] == ["IPU0", "IPU0 (2)", "IPU0"]
    assert chart.idle == 0.0
