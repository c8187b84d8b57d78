"""Phases, serial and parallel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch.schedule import Kind, check, draw, parallel_phased, peak_stash, serial_phased

counts = st.integers(1, 6)


def pictured(text):
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_serial_phases_load_and_store():
    assert draw(serial_phased(phases=2, micro=1)) == pictured("""
        IPU0 | 0L@0 0F@0 0L@1 0F@1 0B@1 0L@0 0B@0 0S@0
    """)
    assert draw(serial_phased(phases=2, micro=1, overlap=False)) == pictured("""
        IPU0 | 0L@0 0F@0 0S@0 0L@1 0F@1 0B@1 0S@1 0L@0 0B@0 0S@0
    """)
    assert draw(serial_phased(phases=2, micro=1, ipus=2, training=False)) == pictured("""
        IPU0 | 0L@0 0F@0 0L@1 0F@1
        IPU1 | 0L@0 0F@0 0L@1 0F@1
    """)


def test_a_phase_that_is_there_is_not_loaded_again():
    assert draw(serial_phased(phases=1, micro=2)) == "IPU0 | 0L 0F 0B 1F 1B 1S"


def test_parallel_phases_load_beside_computation():
    assert draw(parallel_phased(phases=4, micro=1)) == pictured("""
        IPU0 | 0L@0 0F@0 0L@2 0F@2 .    .    0B@2 0L@0 0B@0 0S@0
        IPU1 | 0L@1 .    0F@1 0L@3 0F@3 0B@3 0L@1 0B@1 0S@1 .
    """)
    assert draw(parallel_phased(phases=3, micro=1, ipus=4, training=False)) == pictured("""
        IPU0 | 0L@0 0F@0 0L@2 0F@2
        IPU1 | 0L@1 .    0F@1 .
        IPU2 | 0L@0 0F@0 0L@2 0F@2
        IPU3 | 0L@1 .    0F@1 .
    """)


@given(counts, counts, st.integers(1, 3), st.booleans(), st.booleans())
def test_phased_schedules_hold(phases, micro, half, training, overlap):
    serial = list(serial_phased(phases, micro, half, training=training, overlap=overlap))
    parallel = list(parallel_phased(phases, micro, 2 * half, training=training))
    for ticks in (serial, parallel):
        check(ticks, phases, micro, training=training)
        assert peak_stash(ticks, phases) == (int(training),) * phases
    assert len(parallel) <= len(serial)
    for tick in parallel:
        assert all(job is None or job.part % 2 == ipu % 2 for ipu, job in enumerate(tick.jobs))
    stores = sum(job.kind is Kind.STORE for tick in serial for job in tick.jobs[:1])
    loads = sum(job.kind is Kind.LOAD for tick in serial for job in tick.jobs[:1])
    assert stores == (0 if not training else 1 if overlap else loads)


@pytest.mark.parametrize("ipus", [0, 1, 3])
def test_parallel_phases_need_two_equal_groups(ipus):
    with pytest.raises(ValueError, match="two equal groups"):
        parallel_phased(2, 1, ipus)


@pytest.mark.parametrize("schedule", [serial_phased, parallel_phased])
def test_wrong_counts(schedule):
    for counts_ in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            schedule(*counts_)
