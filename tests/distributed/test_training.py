"""Training over several processes gives the weights of one process with the same replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import processes
from closeness import assert_close_sums
from distributed_cases import CASES, ROWS, STEPS

PROGRAM = processes.TESTS / "distributed_cases.py"
OF_TWO = list(CASES)
ALL_AT_ONCE = ["accumulation", "half", "pipelined", "two replicas each", "sharded", "running mean"]
OF_FOUR = [
    "sharded",
    "sharded, of one element",
    "two replicas each",
    "dropout",
    "groups across processes",
    "pipelined replicas",
]


MEMORY, CONNECTIONS = {}, {"POPTORCH_SHARED_MEMORY": "0"}
WAYS = {"memory": MEMORY, "connections": CONNECTIONS}
RUNS = [
    *(("memory", 2, name) for name in OF_TWO), *(("memory", 4, name) for name in OF_FOUR),
    *(("connections", 2, name) for name in OF_TWO), *(("connections", 4, name) for name in OF_FOUR[:2]),
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, each job started once: importing torch takes longer than training."""
    folder = tmp_path_factory.mktemp("trained")
    for way, count in dict.fromkeys((way, count) for way, count, _ in RUNS):
        names = [name for *job, name in RUNS if job == [way, count]]
        (folder / way / str(count)).mkdir(parents=True)
        processes.run(PROGRAM, count, str(folder / way / str(count)), "1", *names, variables=WAYS[way])
    return folder


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OF_TWO)
def test_memory_and_connections_give_two_processes_the_same_bits(name: str, trained: Path) -> None:
    for process in range(2):
        memory, connections = (torch.load(trained / way / "2" / f"{name}-{process}.pt") for way in WAYS)
        assert memory.keys() == connections.keys()
        assert all(torch.equal(value, connections[key]) for key, value in memory.items())


@pytest.mark.timeout(900)
def test_the_exchange_during_back_propagation_gives_the_same_bits_as_afterwards(trained: Path, tmp_path: Path) -> None:
    processes.run(PROGRAM, 2, str(tmp_path), str(1 << 40), *ALL_AT_ONCE)
    for name in ALL_AT_ONCE:
        for process in range(2):
            early = torch.load(trained / "memory" / "2" / f"{name}-{process}.pt")
            late = torch.load(tmp_path / f"{name}-{process}.pt")
            assert early.keys() == late.keys()
            assert all(torch.equal(value, late[key]) for key, value in early.items()), name


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("way", "count", "name"), RUNS)
def test_replicas_may_be_in_any_process(
    way: str, count: int, name: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    case = CASES[name]
    expected = case.train()
    found = [torch.load(trained / way / str(count) / f"{name}-{process}.pt") for process in range(count)]
    outputs = torch.cat([f.pop("outputs") for f in found], dim=1)
    whole = expected.pop("outputs")
    kept = [int(f.pop("bytes of state")) for f in found]
    alone = int(expected.pop("bytes of state"))
    if name.startswith("sharded"):  # each process holds its share; step counts and what rounds up are on all
        assert max(kept) <= alone / count + 256
    else:
        assert kept == [alone] * count
    rows = case.replicas * case.accumulation * ROWS
    # A float16 gradient is rounded once more where it is summed over processes; every step rounds the weights again.
    dtype = torch.float16 if case.half else None
    bounds = {"terms": 1 if case.half else rows, "steps": 4 * STEPS, "scale": 1.0, "dtype": dtype}
    for one in found:
        assert_close_sums(one, expected, **bounds)
    assert_close_sums(outputs, whole, **bounds)
    for other in found[1:]:
        for key, value in found[0].items():
            assert torch.equal(value, other[key]), f"{key} differs between processes"
