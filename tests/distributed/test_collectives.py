"""Values that replicas in different processes exchange are those of one process with the same replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import processes
from collective_cases import CASES, SHARED, Case

PROGRAM = processes.TESTS / "collective_cases.py"


def assert_same(folder: Path, name: str, case: Case, count: int) -> None:
    alone = case.run()
    found = [torch.load(folder / f"{name}-{process}.pt") for process in range(count)]
    outputs = torch.cat([f.pop("outputs") for f in found[:: case.per_replica]], 1)
    tolerance = {"rtol": 2e-2, "atol": 2e-3} if case.half else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(outputs, alone.pop("outputs"), **tolerance)
    for each in found:
        for key, value in alone.items():
            torch.testing.assert_close(each[key], value, **tolerance)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [2, 4])
def test_processes_exchange_values(count: int, tmp_path: Path) -> None:
    processes.run(PROGRAM, count, str(tmp_path), *CASES)
    for name, case in CASES.items():
        assert_same(tmp_path, name, case, count)


@pytest.mark.timeout(300)
def test_processes_that_share_replicas_exchange_values(tmp_path: Path) -> None:
    processes.run(PROGRAM, 4, str(tmp_path), *SHARED)
    for name, case in SHARED.items():
        assert_same(tmp_path, name, case, 4)


@pytest.mark.timeout(300)
def test_a_replica_that_fails_ends_the_waiting_of_other_processes(tmp_path: Path) -> None:
    with processes.Job(PROGRAM, 2, str(tmp_path), "failing", seconds=20) as job:
        ended = job.wait()
    assert all(each.code not in (None, 0) for each in ended), ended
    assert any("not this one" in each.output for each in ended)
