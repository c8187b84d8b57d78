"""The two-way text form of jobs and ticks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch.schedule import Job, Kind, Tick, draw, read

jobs = st.builds(Job, st.integers(0, 99), st.sampled_from(Kind), st.integers(0, 9))
ticks = st.lists(st.none() | jobs, min_size=3, max_size=3).map(lambda cells: Tick(tuple(cells)))


@given(jobs)
def test_job_text_goes_both_ways(job):
    assert Job.parse(str(job)) == job


@given(ticks)
def test_tick_text_goes_both_ways(tick):
    assert Tick.parse(str(tick)) == tick


@given(st.lists(ticks, min_size=1))
def test_drawing_goes_both_ways(schedule):
    assert read(draw(schedule)) == schedule


def test_the_part_is_left_out_where_it_is_the_worker():
    assert str(Tick((Job(0, Kind.FORWARD, 0), None, Job(1, Kind.BACKWARD, 0)))) == "0F . 1B@0"


@pytest.mark.parametrize("text", ["", "F", "0X@1", "0F", "0F@", "-1F@0", "0F@1 "])
def test_what_is_no_job(text):
    with pytest.raises(ValueError, match="is not a job"):
        Job.parse(text)


def test_rows_have_one_length():
    with pytest.raises(ValueError, match="same length"):
        read("IPU0 | 0F 1F\nIPU1 | .")


def test_labels_line_up():
    wide = Tick(tuple(Job(0, Kind.FORWARD, part) for part in range(11)))
    assert {line.index("|") for line in draw([wide]).splitlines()} == {6}
    assert draw([]) == ""
