"""Processes compare their programs, weights and seeds when they compile."""

from __future__ import annotations

import pytest

import processes

PROGRAM = processes.TESTS / "distributed_faults.py"


@pytest.fixture(scope="module")
def said() -> list[list[str]]:
    """What each of two processes said, line by line."""
    return [output.splitlines() for output in processes.run(PROGRAM, 2, "disagreements")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("what", "phrases"),
    [
        ("model", ["Error", "Processes 0 and 1 do not train the same model", "the model's graph differs"]),
        ("options", ["Error", "the loop", "gradient_accumulation (2 and 4)"]),
        ("learning rate", ["Error", "the optimizer's settings differs", "the optimizer's lr in group 0 (0.1 and 0.2)"]),
        ("rows", ["Error", "the batch of each replica (", "and the model's graph"]),
        ("weights", ["works"]),
        ("after all", ["works"]),
    ],
)
def test_what_differs_is_named_in_all_processes(what: str, phrases: list[str], said: list[list[str]]) -> None:
    for lines in said:
        (line,) = [line for line in lines if line.startswith(f"{what}: ")]
        for phrase in phrases:
            assert phrase in line


def test_a_process_that_fails_says_why_to_all(said: list[list[str]]) -> None:
    lines = [next(line for line in lines if line.startswith("failure: ")) for lines in said]
    assert "Process 1 could not compile its model: ValueError: no such thing" in lines[0]
    assert "ValueError: no such thing" in lines[1]


def test_the_weights_of_process_0_replace_others_with_a_warning(said: list[list[str]]) -> None:
    same = {line for lines in said for line in lines if line.startswith("same weights:")}
    assert len(same) == 1
    for lines in said:
        (warning,) = [line for line in lines if "started with other weights than process 0" in line]
        assert "Processes 1 started" in warning
        assert "layer.weight" in warning


def test_different_seeds_are_told_in_all_processes_and_equal_ones_are_not(said: list[list[str]]) -> None:
    for lines in said:
        (warning,) = [line for line in lines if "Processes have different seeds" in line]
        assert "0 in process 0, 1 in process 1. " in warning
        assert "shuffles" in warning


def test_a_model_of_one_process_and_inference_wait_for_no_other(said: list[list[str]]) -> None:
    assert "alone: works" in said[1]
    assert "members: [{'process': 1}]" in said[1]
    assert "inference: (4, 2)" in said[1]
