"""The two pipelined schedules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch.schedule import (
    check,
    draw,
    idle_share,
    one_f_one_b,
    peak_stash,
    pipelined_inference,
)

counts = st.integers(1, 9)


@st.composite
def places(draw_value):
    """IPUs for a chain of stages; an IPU may be visited again."""
    return draw_value(st.lists(st.integers(0, 3), min_size=1, max_size=6))


def pictured(text):
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_one_f_one_b_two_stages():
    assert draw(one_f_one_b(stages=2, micro=2)) == pictured("""
        IPU0 | 0F 1F .  0B .  1B
        IPU1 | .  0F 0B 1F 1B .
    """)
    assert draw(one_f_one_b(stages=2, micro=3)) == pictured("""
        IPU0 | 0F 1F .  0B 2F 1B .  2B
        IPU1 | .  0F 0B 1F 1B 2F 2B .
    """)


def test_one_f_one_b_four_stages():
    assert draw(one_f_one_b(stages=4, micro=5)) == pictured("""
        IPU0 | 0F 1F 2F 3F .  .  .  0B 4F 1B .  2B .  3B .  4B
        IPU1 | .  0F 1F 2F .  .  0B 3F 1B 4F 2B .  3B .  4B .
        IPU2 | .  .  0F 1F .  0B 2F 1B 3F 2B 4F 3B .  4B .  .
        IPU3 | .  .  .  0F 0B 1F 1B 2F 2B 3F 3B 4F 4B .  .  .
    """)


def test_one_f_one_b_fewer_micro_batches_than_stages():
    assert draw(one_f_one_b(stages=3, micro=1)) == pictured("""
        IPU0 | 0F .  .  .  .  0B
        IPU1 | .  0F .  .  0B .
        IPU2 | .  .  0F 0B .  .
    """)


def test_one_f_one_b_comes_back_to_an_ipu():
    assert draw(one_f_one_b(stages=3, micro=2, ipus=[0, 1, 0])) == pictured("""
        IPU0 | 0F@0 1F@0 0F@2 0B@2 1F@2 1B@2 0B@0 1B@0
        IPU1 | .    0F@1 1F@1 .    0B@1 .    1B@1 .
    """)


def test_pipelined_inference_is_a_staircase():
    assert draw(pipelined_inference(stages=3, micro=4)) == pictured("""
        IPU0 | 0F 1F 2F 3F .  .
        IPU1 | .  0F 1F 2F 3F .
        IPU2 | .  .  0F 1F 2F 3F
    """)


@given(counts, counts)
def test_one_f_one_b_length_bubbles_and_stash(stages, micro):
    ticks = list(one_f_one_b(stages, micro))
    check(ticks, stages, micro)
    assert len(ticks) == 2 * (micro + stages - 1)
    assert idle_share(ticks) == pytest.approx((stages - 1) / (micro + stages - 1))
    assert peak_stash(ticks, stages) == tuple(min(stages - stage, micro) for stage in range(stages))


@given(counts, counts)
def test_pipelined_inference_length_and_stash(stages, micro):
    ticks = list(pipelined_inference(stages, micro))
    check(ticks, stages, micro, training=False)
    assert len(ticks) == micro + stages - 1
    assert peak_stash(ticks, stages) == (0,) * stages


@given(places(), counts)
def test_pipelines_that_come_back_to_an_ipu(ipus, micro):
    stages = len(ipus)
    training = list(one_f_one_b(stages, micro, ipus))
    check(training, stages, micro)
    check(pipelined_inference(stages, micro, ipus), stages, micro, training=False)
    peaks = peak_stash(training, stages)
    assert all(peak <= min(stages - stage, micro) for stage, peak in enumerate(peaks))
    for tick in training:
        assert all(job is None or ipus[job.part] == ipu for ipu, job in enumerate(tick.jobs))


@pytest.mark.parametrize("schedule", [one_f_one_b, pipelined_inference])
def test_wrong_counts(schedule):
    with pytest.raises(ValueError, match="stages must be at least 1"):
        schedule(0, 1)
    with pytest.raises(ValueError, match="micro must be at least 1"):
        schedule(1, 0)
    with pytest.raises(ValueError, match="2 stages need 2 IPU indices, not 1"):
        schedule(2, 1, [0])
