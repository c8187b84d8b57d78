"""Executors that call each other from operations on the CPU, in two threads: they do not wait for ever."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import poptorch
from poptorch.executor.turns import Turns

PATIENCE = 60.0


def test_two_threads_that_call_two_executors_the_other_way_round() -> None:
    """The last to come into the circle fails, and the other one goes on."""
    inside = threading.Barrier(2, timeout=PATIENCE)
    executors: dict[str, Any] = {}

    def calling(other: str) -> Any:
        def operation(x: torch.Tensor) -> torch.Tensor:
            if x[0] > 0:  # capture calls it, too, and so does the other thread in the end
                inside.wait()
                return executors[other](-x)
            return x

        return operation

    class Model(torch.nn.Module):
        def __init__(self, other: str) -> None:
            super().__init__()
            self.operation = poptorch.CPU(calling(other), f"calls_{other}")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.operation(x)

    for own, other in ("ab", "ba"):
        executors[own] = poptorch.inferenceModel(Model(other))
        executors[own](-torch.ones(2))  # compile
    found: dict[str, Any] = {}

    def run(name: str) -> None:
        try:
            found[name] = executors[name](torch.ones(2))
        except poptorch.Error as error:
            found[name] = error

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    failed = [error for error in found.values() if isinstance(error, Exception)]
    # Operations on the CPU must not be nested: the other call comes as far as that.
    assert sum("Executors wait for each other" in str(error) for error in failed) == 1, found
    for executor in executors.values():  # they can be used again
        assert torch.equal(executor(-torch.ones(2)), -torch.ones(2))


def test_turns_of_three_threads_in_a_circle() -> None:
    turns = [Turns() for _ in range(3)]
    inside = threading.Barrier(3, timeout=PATIENCE)
    said: list[str] = []

    def take_two(first: Turns, second: Turns) -> None:
        def inner() -> None:
            inside.wait()
            try:
                second.take(lambda: said.append("got it"))
            except poptorch.Error as error:
                said.append(str(error))

        first.take(inner)

    threads = [threading.Thread(target=take_two, args=(turns[i], turns[(i + 1) % 3]), daemon=True) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    assert said.count("got it") == 2
    assert sum("Executors wait for each other" in text for text in said) == 1


@pytest.mark.parametrize("callers", [8])
def test_many_callers_of_one_executor_are_no_circle(callers: int) -> None:
    first, second = Turns(), Turns()
    done: list[int] = []

    def call(number: int) -> None:
        first.take(lambda: second.take(lambda: done.append(number)))

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(done) == list(range(callers))
