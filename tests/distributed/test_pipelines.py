"""Replicas whose stages are in several processes give the bits of replicas in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import processes
from closeness import assert_close_sums
from pipeline_cases import CASES, ROWS, STEPS

PROGRAM = processes.TESTS / "pipeline_cases.py"
FAULTS = processes.TESTS / "pipeline_faults.py"
OF_FOUR = {"four stages": 4, "replicas": 2, "sharded state": 2, "inference of four stages": 2}
"""With so many processes for each replica; the other processes have the other replicas."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, each job started once: importing torch takes longer than training."""
    folder = tmp_path_factory.mktemp("ran")
    for count, cases in ((1, dict.fromkeys(CASES, 1)), (2, dict.fromkeys(CASES, 2)), (4, OF_FOUR)):
        (folder / str(count)).mkdir()
        asked = [f"{name}={together}" for name, together in cases.items()]
        with processes.Job(PROGRAM, count, str(folder / str(count)), *asked) as job:
            ended = job.wait(2 * processes.PATIENCE)
        assert [end.code for end in ended] == [0] * count, "\n".join(end.output[-2000:] for end in ended)
    return folder


def alone(name: str, ran: Path) -> dict[str, Any]:
    """What one process got, with as many threads as the others have: some sums depend on their number."""
    found: dict[str, Any] = torch.load(ran / "1" / f"{name}-0.pt")
    return found


def assert_same(found: Any, expected: Any) -> None:
    """The same values of the same types, down to the last bit."""
    leaves, structure = pytree.tree_flatten(found)
    others, other_structure = pytree.tree_flatten(expected)
    assert structure == other_structure
    for leaf, other in zip(leaves, others, strict=True):
        torch.testing.assert_close(leaf, other, rtol=0, atol=0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_bits_of_one(name: str, ran: Path) -> None:
    expected = alone(name, ran)
    for process in range(2):
        found = torch.load(ran / "2" / f"{name}-{process}.pt")
        for what in ("returned", "anchors", "weights"):
            assert_same(found[what], expected[what])
        assert found["latency"]
        if name != "tied":
            assert found["bytes of weights"] == expected["bytes of weights"] // 2
            assert found["bytes of state"] == expected["bytes of state"] // 2


@pytest.mark.timeout(600)
def test_four_processes_share_one_replica(ran: Path) -> None:
    expected = alone("four stages", ran)
    for process in range(4):
        found = torch.load(ran / "4" / f"four stages-{process}.pt")
        assert_same(found["returned"], expected["returned"])
        assert_same(found["weights"], expected["weights"])
        assert found["bytes of weights"] == expected["bytes of weights"] // 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name, together in OF_FOUR.items() if together == 2])
def test_two_replicas_of_two_processes_each(name: str, ran: Path) -> None:
    case = CASES[name]
    expected = alone(name, ran)
    found = [torch.load(ran / "4" / f"{name}-{process}.pt") for process in range(4)]
    # Gradients are summed over processes in an order of its own; every step rounds the weights again.
    bounds = {"terms": case.replicas * case.accumulation * ROWS, "steps": 4 * STEPS, "scale": 1.0}
    for one in found:
        assert_close_sums(one["weights"], expected["weights"], **bounds)
        assert_same(one["weights"], found[0]["weights"])
    assert_same(found[1]["returned"], found[0]["returned"])  # of the same replica
    assert_same(found[3]["returned"], found[2]["returned"])
    for step in range(STEPS):
        whole = pytree.tree_leaves(expected["returned"][step])
        parts = [pytree.tree_leaves(found[process]["returned"][step]) for process in (0, 2)]
        for number, tensor in enumerate(whole):
            rows = tensor.reshape(-1, 2, *(tensor.shape[1:] if tensor.numel() == 2 else (ROWS, *tensor.shape[1:])))
            for replica in range(2):
                own = rows[:, replica]
                assert_close_sums(parts[replica][number].reshape(own.shape), own, **bounds)
    kept = 4 if name == "sharded state" else 2  # the state of half the elements of half the stages, and step counts
    assert max(one["bytes of state"] for one in found) <= expected["bytes of state"] / kept + 16


# -- what else they do, and what goes wrong ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """What two processes said in which nothing unforeseen happened, and where they wrote."""
    folder = tmp_path_factory.mktemp("calm")
    return processes.run(FAULTS, 2, "calm", str(folder)), folder


@pytest.mark.timeout(300)
def test_a_process_needs_only_the_values_of_its_own_stages(calm: tuple[list[str], Path], ran: Path) -> None:
    expected = alone("adamw", ran)
    for process in range(2):
        found = torch.load(calm[1] / f"{process}.pt")
        own = [f"layers.{process}.weight", f"layers.{process}.bias"]
        assert found["own"] == own
        assert list(found["trained"]) == own
        assert {name.partition("___")[2] for name in found["state"]} == set(own)
        assert_same(found["trained"], {name: expected["weights"][name] for name in own})
        assert_same(found["losses"], [returned[1] for returned in expected["returned"]])


def test_values_that_are_missing_are_named_in_all_processes(calm: tuple[list[str], Path]) -> None:
    for output in calm[0]:
        (line,) = [line for line in output.splitlines() if line.startswith("missing: ")]
        assert "layers.1.weight and 1 more of the model cannot be loaded: on the meta device" in line
        assert "tensorsOfProcess" in line


def test_training_goes_on_from_a_checkpoint(calm: tuple[list[str], Path]) -> None:
    assert all("bit-equal" in output for output in calm[0])


def test_different_models_are_noticed(calm: tuple[list[str], Path]) -> None:
    for output in calm[0]:
        assert "unequal: Processes 0 and 1 do not train the same model: the model's graph" in output


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("what", "lost"), [("killed", 1), ("first_killed", 0)])
def test_a_killed_process_is_named(what: str, lost: int) -> None:
    with processes.Job(FAULTS, 2, what) as job:
        ended = job.wait()
    assert ended[lost].code == -9
    other = ended[1 - lost]
    assert other.code == 5, other.output
    assert "RecoverableError PARTITION_RESET: The job of 2 processes cannot go on" in other.output
    assert f"process {lost} (pid " in other.output
    assert "again RecoverableError" in other.output


@pytest.mark.timeout(300)
def test_an_interrupted_process_tells_the_other() -> None:
    with processes.Job(FAULTS, 2, "interrupted") as job:
        first, second = job.wait()
    assert first.code == 6, first.output
    assert second.code == 5, second.output
    assert "stopped in the middle of a call, by KeyboardInterrupt" in second.output


@pytest.mark.timeout(300)
def test_an_error_of_one_stage_ends_the_call_everywhere() -> None:
    with processes.Job(FAULTS, 2, "broken") as job:
        first, second = job.wait()
    assert second.code == 5
    assert "index 1000 is out of bounds" in second.output
    assert "pipeline_faults.py" in second.output
    assert first.code == 5
    assert "process 1 (pid " in first.output
    assert "stopped in the middle of a call, by IndexError" in first.output


@pytest.mark.timeout(300)
def test_a_stopped_process_trips_the_time_out() -> None:
    with processes.Job(FAULTS, 2, "stopped", seconds=8) as job:
        first = job.processes[0].communicate(timeout=processes.PATIENCE)[0]
        assert job.processes[0].returncode == 5, first
    assert "process 1 (pid " in first
    assert "is stopped and does not answer" in first
