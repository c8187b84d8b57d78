"""Processes of one host share memory: the same numbers as over connections, and nothing is left of it."""

from __future__ import annotations

import re

import pytest

import processes
from rooms_cases import CASES

PROGRAM = processes.TESTS / "rooms_cases.py"


@pytest.fixture(scope="module", params=[2, 3])
def outputs(request: pytest.FixtureRequest) -> list[str]:
    """All cases one after the other: importing torch takes longer than they do."""
    return processes.run(PROGRAM, request.param, *CASES)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_a_room(case: str, outputs: list[str]) -> None:
    assert all(f"{case} done" in output for output in outputs)


@pytest.mark.timeout(900)
def test_what_is_said(outputs: list[str]) -> None:
    for output in outputs:
        assert re.search(r"Process 1 cannot share \d+ bytes of memory with the others: .Errno 38. no such call", output)
        assert output.count("Gradients travel over network connections, although all processes are on one host") == 1
