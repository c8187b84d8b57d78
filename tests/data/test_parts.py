"""The parts that the loader is made of: parcels, rings, the stopwatch, trace points."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_sets import Numbers

import poptorch
import preloaded
from open_files import open_files
from poptorch import DataLoader, DataLoaderMode, Options
from poptorch.data import waiting
from poptorch.data.items import ItemStructure
from poptorch.data.parcel import pack, unpack
from poptorch.data.ring import Ring, RingLayout, anonymous_file
from poptorch.data.shared_segments import remove_segments
from poptorch.data.waiting import WaitMeter


def journey(content: Any, *, on_disk: bool = False) -> Any:
    descriptor = pack(content, on_disk=on_disk)
    try:
        return unpack(descriptor)
    finally:
        os.close(descriptor)


# --- parcels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [True, False])
def test_parcels_carry_anything_picklable(on_disk: bool) -> None:
    content = {
        "text": "x",
        "tensor": torch.randn(3, 4).t(),
        "array": numpy.arange(5),
        "empty": torch.zeros(0, 2),
    }
    found = journey(content, on_disk=on_disk)
    assert found["text"] == "x"
    assert torch.equal(found["tensor"], content["tensor"])  # type: ignore[arg-type]
    assert found["tensor"].stride() == (1, 4)
    assert found["array"].tolist() == [0, 1, 2, 3, 4]
    assert found["empty"].shape == (0, 2)


def test_views_of_one_storage_travel_once_and_stay_views() -> None:
    rows = torch.zeros(1000, 256)
    descriptor = pack(list(rows))
    size = os.fstat(descriptor).st_size
    os.close(descriptor)
    assert size < 2 * rows.nbytes
    found = journey(list(rows[:4]))
    found[0].fill_(1)
    assert found[0].untyped_storage().data_ptr() == found[3].untyped_storage().data_ptr()


def test_writing_to_what_was_unpacked_changes_nobody_else() -> None:
    descriptor = pack([torch.zeros(4), numpy.zeros(4)])
    first, second = unpack(descriptor), unpack(descriptor)
    os.close(descriptor)
    for part in first:
        part[:] = 1
    assert [float(part.sum()) for part in second] == [0, 0]


def test_gradient_flags_survive() -> None:
    assert journey(torch.ones(2, requires_grad=True)).requires_grad


# --- rings -----------------------------------------------------------------------------------------------------

DTYPES = [torch.uint8, torch.bool, torch.float16, torch.float32, torch.int64, torch.complex64]


@settings(max_examples=50, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), min_size=1, max_size=4
    ),
    slots=st.integers(1, 4),
)
def test_slots_do_not_overlap(shapes: list[tuple[torch.dtype, list[int]]], slots: int) -> None:
    tensors = [torch.zeros(shape, dtype=dtype) for dtype, shape in shapes]
    layout = RingLayout.for_item(ItemStructure.of(tensors), tensors, slots)
    descriptor = anonymous_file(layout.total_bytes)
    writer, reader = Ring(layout, descriptor), Ring(layout, descriptor)
    os.close(descriptor)
    number = 0
    for slot in writer.slots:
        for tensor in slot:
            number += 1
            tensor.fill_(number % 2)
            assert tensor.data_ptr() % 64 == 0 or tensor.numel() == 0
    number = 0
    for index in range(slots):
        item: Any = reader.read(index)
        for tensor, (dtype, shape) in zip(item, shapes, strict=True):
            number += 1
            assert tensor.dtype == dtype
            assert list(tensor.shape) == shape
            assert torch.equal(tensor, torch.full_like(tensor, number % 2))


@pytest.mark.parametrize("on_disk", [True, False])
def test_no_room_is_refused_before_any_of_it_is_taken(on_disk: bool) -> None:
    before = open_files("poptorch")
    with pytest.raises(OSError, match="Cannot reserve"):
        anonymous_file(2**60, on_disk=on_disk)
    assert open_files("poptorch") <= before


# --- segments of killed workers --------------------------------------------------------------------------------


def test_only_segments_of_the_dead_are_removed(tmp_path: Path) -> None:
    for name in ("torch_12_5_0", "torch_12_5_1", "torch_123_5_0", "other_12_5"):
        (tmp_path / name).touch()
    remove_segments([12], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other_12_5", "torch_123_5_0"]


# --- the stopwatch ---------------------------------------------------------------------------------------------


class Clock:
    """A clock that tests turn by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_waiting_and_working_are_told_apart(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    poptorch.setLogLevel("DEBUG")
    meter = WaitMeter("loader", advice="use more workers")

    def batch(wait: float, work: float) -> None:
        meter.start()
        clock.now += wait
        meter.stop()
        clock.now += work

    meter.begin_epoch()
    batch(wait=2, work=1)  # the first one
    batch(wait=1, work=3)
    meter.start()
    clock.now += 1
    with caplog.at_level(logging.DEBUG):
        meter.end_epoch()
    clock.now += 100  # between epochs: neither
    meter.begin_epoch()
    batch(wait=0, work=50)
    report = meter.total()
    assert (report.epochs, report.batches) == (1, 3)
    assert (report.waited_s, report.worked_s, report.first_wait_s) == (4, 4, 2)
    assert report.share == 0.5
    assert report.verdict == "loading is the bottleneck"
    assert "loader: epoch 1: 2 batches; the consumer waited 4.00 s of 8.00 s (50.0 %)" in caplog.text
    assert "use more workers" in caplog.text


@pytest.mark.parametrize("mode", list(DataLoaderMode))
@pytest.mark.parametrize("workers", [0, 1])
def test_every_mode_reports(mode: DataLoaderMode, workers: int, caplog: pytest.LogCaptureFixture) -> None:
    poptorch.setLogLevel("DEBUG")
    with (
        caplog.at_level(logging.DEBUG),
        DataLoader(Options().deviceIterations(2), Numbers(10), mode=mode, num_workers=workers) as loader,
    ):
        assert loader.waitReport().verdict == "nothing has been loaded yet"
        for _ in range(2):
            list(loader)
        report = loader.waitReport()
    assert (report.epochs, report.batches) == (2, 10)
    assert report.waited_s > 0
    assert 0 <= report.share <= 1
    assert caplog.text.count("the consumer waited") == 2


# --- trace points ----------------------------------------------------------------------------------------------

TRACED = """
import poptorch
loader = poptorch.DataLoader(poptorch.Options().deviceIterations(2), list(range(10)))
assert len(list(loader)) == 5 and len(loader.dataset) == 10
channels = [poptorch.profiling.Channel(name) for name in ("dataset", "poptorch.DataLoader")]
print(*(len(channel.records) for channel in channels))
"""


@pytest.mark.parametrize(("enable", "expected"), [("true", "10 6"), ("false", "0 0")])
def test_item_access_is_traced_on_request(enable: str, expected: str, tmp_path: Path) -> None:
    options = json.dumps({"enable": enable, "directory": str(tmp_path)})
    done = preloaded.run(["-c", TRACED], env=os.environ | {"PVTI_OPTIONS": options})
    assert done.stdout.strip() == expected, done.stderr
    assert len(list(tmp_path.glob("*.json"))) == (enable == "true")
