"""Sharded execution: one IPU at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch.schedule import check, draw, peak_stash, sharded

counts = st.integers(1, 6)


def pictured(text):
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_sharded_keeps_one_ipu_busy():
    assert draw(sharded(stages=3, micro=1)) == pictured("""
        IPU0 | 0F .  .  .  .  0B
        IPU1 | .  0F .  .  0B .
        IPU2 | .  .  0F 0B .  .
    """)
    assert draw(sharded(stages=2, micro=2, training=False)) == pictured("""
        IPU0 | 0F .  1F .
        IPU1 | .  0F .  1F
    """)
    assert draw(sharded(stages=3, micro=1, ipus=[0, 1, 0])) == pictured("""
        IPU0 | 0F@0 .    0F@2 0B@2 .    0B@0
        IPU1 | .    0F@1 .    .    0B@1 .
    """)


@given(counts, counts, st.booleans())
def test_sharded_has_one_job_a_tick(stages, micro, training):
    ticks = list(sharded(stages, micro, training=training))
    check(ticks, stages, micro, training=training)
    assert all(sum(job is not None for job in tick.jobs) == 1 for tick in ticks)
    assert len(ticks) == stages * micro * (2 if training else 1)
    assert peak_stash(ticks, stages) == (int(training),) * stages


def test_wrong_counts():
    for counts_ in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            sharded(*counts_)
