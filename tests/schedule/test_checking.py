"""The checker finds what is wrong with a drawn schedule."""

import pytest

from poptorch.schedule import Job, ScheduleError, check, peak_stash, read
from poptorch.schedule.clock import clock


@pytest.mark.parametrize(
    ("drawing", "fault"),
    [
        (
            """
            IPU0 | 0F .  0B .
            IPU1 | .  0F .  0B
            """,
            "Tick 2: 0B@0 runs before 0B@1 is done",
        ),
        (
            """
            IPU0 | 0F .
            IPU1 | 0B 0F
            """,
            "Tick 0: 0B@1 runs before 0F@1 is done",
        ),
        (
            """
            IPU0 | 0F .  .
            IPU1 | .  0F 0B
            """,
            "Tick 3: the schedule ends without 0B@0",
        ),
        (
            """
            IPU0 | 0F 0F
            IPU1 | .  .
            """,
            "Tick 1: 0F@0 runs a second time",
        ),
        (
            """
            IPU0 | 1F 0F
            IPU1 | .  .
            """,
            "Tick 0: 1F@0 does not belong to 2 parts and 1 micro-batches",
        ),
        (
            """
            IPU0 | 0L@0 0F@0 0F@1
            """,
            "Tick 2: 0F@1 runs on IPU0, which holds phase 0",
        ),
        (
            """
            IPU0 | 0L@0 0F@0 0S@0 0B@0
            """,
            "Tick 3: 0B@0 runs on IPU0, which holds phase None",
        ),
    ],
)
def test_faults_are_found_and_shown(drawing, fault):
    with pytest.raises(ScheduleError) as raised:
        check(read(drawing), parts=2, micro=1)
    message = str(raised.value)
    assert message.startswith(fault)
    assert "\nIPU0 | " in message


def test_micro_batches_keep_their_order():
    with pytest.raises(ScheduleError, match="1F@0 runs out of order: micro-batch 0 comes next"):
        check(read("IPU0 | 1F 0F"), parts=1, micro=2, training=False)


def test_the_same_job_on_several_ipus_of_a_group_counts_once():
    both = read("IPU0 | 0L@0 0F@0\nIPU1 | 0L@0 0F@0")
    check(both, parts=1, micro=1, training=False)


def test_stash_lasts_until_the_backward_is_done():
    assert peak_stash(read("IPU0 | 0F 1F 0B 2F 1B 2B"), parts=1) == (2,)
    assert peak_stash(read("IPU0 | 0F 1F 2F 0B 1B 2B"), parts=1) == (3,)


def test_a_stuck_clock_says_so():
    waiting = Job.parse("0F@1")
    with pytest.raises(ScheduleError, match="cannot go on: 0F@1 wait"):
        list(clock([[waiting]], [[0]], lambda job: [Job.parse("0F@0")]))
