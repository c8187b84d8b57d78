"""A job that runs for long uses as much at the end as at the beginning."""

from __future__ import annotations

import re

import pytest

import processes

PROGRAM = processes.TESTS / "job_soak.py"
GROWTH = 16 << 20
"""In bytes: what allocators keep in reserve."""


@pytest.mark.parametrize(
    ("seconds", "code"),
    [("20", "interpret"), pytest.param("1200", "native", marks=[pytest.mark.exhaustive, pytest.mark.slow])],
)
@pytest.mark.timeout(2400)
def test_nothing_grows(seconds: str, code: str) -> None:
    with processes.Job(PROGRAM, 2, seconds, variables={"POPTORCH_CODEGEN": code}, seconds=300) as job:
        ended = job.wait(float(seconds) + 2 * processes.PATIENCE)
    for end in ended:
        assert end.code == 0, end.output[-3000:]
        found = {name: (int(a), int(b)) for name, a, b in re.findall(r"(\w+) (\d+) (\d+);", end.output)}
        print(end.output.splitlines()[-1])
        assert found["memory"][1] - found["memory"][0] < GROWTH, found
        assert found["files"][1] <= found["files"][0], found
        assert found["threads"][1] <= found["threads"][0], found
