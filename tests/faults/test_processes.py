"""Jobs of several processes in which one is lost, or which cannot start: the others say so, in bounded time."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import pytest

import processes

PROGRAM = processes.TESTS / "distributed_faults.py"

pytestmark = pytest.mark.timeout(900)

LONG_PATIENCE = 2 * processes.PATIENCE
"""Seconds for four processes: twice as many as most jobs here have."""


NOTICED_SECONDS = 10
"""How long a process may take to hear that another one is lost: several times what it takes on a busy machine."""


def when(what: str, output: str) -> float:
    """What the clock said when something happened."""
    found = re.search(rf"{what} at ([\d.]+)", output)
    assert found is not None, output
    return float(found[1])


@pytest.mark.parametrize(("what", "lost"), [("killed", 2), ("first_killed", 0)])
def test_others_name_a_process_that_was_killed(what: str, lost: int) -> None:
    with processes.Job(PROGRAM, 4, what, seconds=100) as job:
        pid = job.processes[lost].pid
        ended = job.wait(LONG_PATIENCE)
    assert ended[lost].code == -signal.SIGKILL
    for end in (e for rank, e in enumerate(ended) if rank != lost):
        assert end.code == 5, end.output
        assert "RecoverableError PARTITION_RESET" in end.output
        assert f"process {lost} (pid {pid}" in end.output
        assert when("raised", end.output) - when("killed", ended[lost].output) < NOTICED_SECONDS


def test_a_process_that_ends_early_is_named() -> None:
    with processes.Job(PROGRAM, 2, "ended", seconds=100) as job:
        ended = job.wait()
    assert (ended[0].code, ended[1].code) == (5, 0)
    assert "process 1" in ended[0].output


def test_a_stopped_process_trips_the_time_out() -> None:
    with processes.Job(PROGRAM, 2, "stopped", seconds=10) as job:
        other = job.processes[0]
        output, _ = other.communicate(timeout=processes.PATIENCE)
        assert job.processes[1].poll() is None  # it is still there, and stopped
    assert other.returncode == 5
    assert "RecoverableError PARTITION_RESET" in output
    assert "process 1" in output
    assert "is stopped and does not answer" in output


def test_a_process_that_is_killed_between_two_buckets_is_named() -> None:
    with processes.Job(PROGRAM, 3, "killed_in_the_middle", seconds=100) as job:
        pid = job.processes[1].pid
        ended = job.wait()
    assert ended[1].code == -signal.SIGKILL
    for end in (ended[0], ended[2]):
        assert end.code == 5, end.output
        assert f"process 1 (pid {pid}" in end.output


def test_a_process_that_is_stopped_between_two_buckets_trips_the_time_out() -> None:
    with processes.Job(PROGRAM, 2, "stopped_in_the_middle", seconds=10) as job:
        output, _ = job.processes[0].communicate(timeout=processes.PATIENCE)
    assert job.processes[0].returncode == 5
    assert "is stopped and does not answer" in output


def test_a_call_that_fails_between_two_buckets_ends_the_job() -> None:
    with processes.Job(PROGRAM, 3, "failed_in_the_middle", seconds=100) as job:
        ended = job.wait()
    assert [end.code for end in ended] == [5, 5, 5], ended[0].output
    for rank, end in enumerate(ended):
        assert "RecoverableError PARTITION_RESET" in end.output, f"process {rank}: {end.output}"
        assert "process 1 (pid" in end.output
        assert "has failed in the middle of a training step" in end.output
    assert "Error : something else" in ended[1].output


def test_a_job_goes_on_from_its_checkpoint_as_if_nothing_had_happened(tmp_path: Path) -> None:
    ended = []
    for _ in range(2):
        with processes.Job(PROGRAM, 4, "restarted", str(tmp_path), seconds=100) as job:
            ended.append(job.wait(LONG_PATIENCE))
    assert [end.code for end in ended[0]] == [5, -signal.SIGKILL, 5, 5], ended[0][0].output
    assert [end.code for end in ended[1]] == [0, 0, 0, 0], ended[1][0].output
    assert all("bit-equal" in end.output for end in ended[1])


def test_processes_that_count_differently_say_so() -> None:
    with processes.Job(PROGRAM, 2, "counts", variables=_meeting(), seconds=60) as job:
        ended = job.wait()
    assert [end.code for end in ended] == [5, 5], ended[0].output
    assert "process 1 says 3, process 0 says 2" in ended[0].output
    assert "process 0 says 2, process 1 says 3" in ended[1].output


def test_two_processes_with_one_number_are_refused() -> None:
    with processes.Job(PROGRAM, 3, "same_number", variables=_meeting(), seconds=100) as job:
        ended = job.wait()
    for end in ended:
        assert end.code == 5, end.output
        assert "Two processes of the job say that they are process 1" in end.output


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with processes.Job(PROGRAM, 1, "counts", variables=where, seconds=8) as job:
            (end,) = job.wait()
    assert end.code == 5
    assert f"cannot listen on 127.0.0.1:{port}" in end.output


@pytest.mark.parametrize("seconds", ["3", pytest.param("30", marks=pytest.mark.exhaustive)])
def test_the_others_wait_for_a_process_that_comes_late(seconds: str, tmp_path: Path) -> None:
    outputs = processes.run(PROGRAM, 2, "late", seconds, variables={"TMPDIR": str(tmp_path)})
    assert all("went on to the end" in output for output in outputs)
    assert list(tmp_path.glob("poptorch-*/*")) == []  # where they found each other


def _meeting() -> dict[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return {"POPTORCH_RENDEZVOUS": f"127.0.0.1:{free.getsockname()[1]}"}
