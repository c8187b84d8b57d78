"""Signals that reach processes of a job at any moment, and clocks that jump: all processes come to an end."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import processes

PROGRAM = processes.TESTS / "job_cases.py"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGSTOP)
LIMIT_SECONDS = 12
LONGEST_DELAY = 3.0

FEW, MANY = 4, 100
TRIES = [pytest.param(number, marks=pytest.mark.exhaustive if number >= FEW else ()) for number in range(MANY)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", TRIES)
def test_a_signal_at_a_random_moment(number: int, tmp_path: Path) -> None:
    chance = random.Random(number)
    count, what = chance.choice([2, 3]), chance.choice(SIGNALS)
    hit = chance.randrange(count)
    with processes.Job(
        PROGRAM, count, "interrupted_at_random", "600", variables={"TMPDIR": str(tmp_path)}, seconds=LIMIT_SECONDS
    ) as job:
        time.sleep(chance.uniform(0, LONGEST_DELAY))
        os.kill(job.processes[hit].pid, what)
        others = [process for rank, process in enumerate(job.processes) if rank != hit]
        outputs = [process.communicate(timeout=processes.PATIENCE)[0] for process in others]
        if what != signal.SIGSTOP:
            job.processes[hit].communicate(timeout=processes.PATIENCE)
            assert job.processes[hit].returncode != 0
    for process, output in zip(others, outputs, strict=True):
        assert process.returncode == 5, f"{what.name} at process {hit} of {count}: {process.returncode}\n{output}"
        assert "Error" in output
    left = [path for path in tmp_path.glob("poptorch-*/*") if path.suffix != ".json"]
    assert not left, "a file that is not an invitation"


@pytest.mark.timeout(300)
def test_clocks_that_jump() -> None:
    for output in processes.run(PROGRAM, 2, "odd_clock"):
        assert "met" in output
