"""Profiling channels."""

from __future__ import annotations

import itertools

import pytest

from poptorch.profiling import Channel, channel

_fresh = itertools.count()


class Worker:
    def work(self, value: int, *, double: bool = False) -> int:
        """The original docstring."""
        return value * 2 if double else value


@pytest.fixture
def name() -> str:
    return f"test channel {next(_fresh)}"


@pytest.fixture
def _enabled(monkeypatch) -> None:
    monkeypatch.setattr(channel, "enabled", True)


def test_without_pvti_options_nothing_is_recorded_or_wrapped(name: str) -> None:
    worker, series = Worker(), Channel(name)
    assert series.instrument(worker, "work") is worker
    assert "work" not in vars(worker)
    with series.tracepoint("span"):
        pass
    assert series.records == ()


@pytest.mark.usefixtures("_enabled")
def test_a_tracepoint_is_timed_under_the_name_of_its_channel(name: str) -> None:
    series = Channel(name)
    with series.tracepoint("outer"), series.tracepoint("inner"):
        pass
    inner, outer = series.records
    assert (inner.name, outer.name) == (f"{name}.inner", f"{name}.outer")
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
    assert inner.thread == outer.thread


@pytest.mark.usefixtures("_enabled")
def test_a_tracepoint_that_raises_is_recorded_too(name: str) -> None:
    series = Channel(name)
    with pytest.raises(KeyError), series.tracepoint("span"):
        raise KeyError("x")
    assert [record.name for record in series.records] == [f"{name}.span"]


@pytest.mark.usefixtures("_enabled")
def test_instrumented_methods_keep_their_meaning(name: str) -> None:
    series = Channel(name)
    worker = series.instrument(Worker(), "work")
    assert worker.work(3, double=True) == 6
    assert worker.work.__doc__ == "The original docstring."
    assert [record.name for record in series.records] == [f"{name}.work"]
    assert Worker().work(1) == 1  # the class is untouched
    assert len(series.records) == 1


@pytest.mark.usefixtures("_enabled")
def test_channels_of_one_name_share_their_records(name: str) -> None:
    with Channel(name).tracepoint("span"):
        pass
    assert len(Channel(name).records) == 1
