"""The one sink of gradients: for one thread and for many, alone and with other processes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, cast

import pytest
import torch

import accumulating
from poptorch.executable.groups import HostLoop
from poptorch.runtime.gradients import GradientSink


class Exchange:
    """Other processes, which have gradients of zeros."""

    def __init__(self, scatters: bool = False) -> None:
        self.scatters_every_group = scatters
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.found: dict[str, torch.Tensor] = {}

    def ready(self, bucket: int, gradients: Mapping[str, torch.Tensor]) -> None:
        self.seen.append((bucket, {name: float(g) for name, g in gradients.items()}))
        self.found |= gradients

    def take(self) -> Mapping[str, torch.Tensor]:
        found, self.found = self.found, {}
        return found


def sink(stages: Any, *, alone: bool, micro_batches: int = 3) -> GradientSink:
    names = [name for buckets in stages for bucket in buckets for name in bucket]
    executable = accumulating.executable(names, HostLoop(gradient_accumulation=micro_batches))
    executable.code.alone = alone
    executable.code.stages = [type("Stage", (), {"gradients": buckets}) for buckets in stages]
    return GradientSink(executable)


def t(value: float) -> torch.Tensor:
    return torch.tensor(value)


def plain(gradients: Mapping[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(gradient) for name, gradient in gradients.items()}


@pytest.mark.parametrize("alone", [True, False])
def test_all_buckets_of_a_round_are_added_up(alone: bool) -> None:
    found = sink([[["a"], ["b", "c"]]], alone=alone)
    found.begin(None)
    for _ in range(2):  # the second round starts afresh
        for micro in range(3):
            found.add(0, 0, micro, 0, [t(1.0)])
            found.add(0, 1, micro, 0, [t(2.0), t(3.0)])
        assert plain(found.take()) == {"a": 3.0, "b": 6.0, "c": 9.0}


@pytest.mark.parametrize("order", itertools.permutations([(0, 0), (0, 1), (1, 0), (1, 1)]))
def test_stages_bring_gradients_at_any_time(order: Any) -> None:
    found = sink([[["a"]], [["b"]]], alone=False, micro_batches=2)
    found.begin(None)
    for stage, micro in order:
        found.add(stage, 0, micro, 0, [t(10.0 * stage + micro)])
    assert plain(found.take()) == {"a": 1.0, "b": 21.0}


@pytest.mark.parametrize("alone", [True, False])
def test_a_bucket_goes_to_other_processes_when_it_is_complete(alone: bool) -> None:
    found, exchange = sink([[["a"], ["b"]]], alone=alone, micro_batches=2), Exchange()
    found.begin(cast(Any, exchange))
    found.add(0, 0, 0, 0, [t(1.0)])
    assert not exchange.seen
    found.add(0, 1, 0, 0, [t(2.0)])
    found.add(0, 1, 1, 0, [t(2.0)])
    assert exchange.seen == [(1, {"b": 4.0})]
    found.add(0, 0, 1, 0, [t(1.0)])
    assert exchange.seen[1:] == [(0, {"a": 2.0})]
    assert plain(found.take()) == {"a": 2.0, "b": 4.0}


def test_buckets_are_numbered_through_all_stages() -> None:
    found, exchange = sink([[["a"], ["b"]], [["c"]]], alone=False, micro_batches=1), Exchange()
    found.begin(cast(Any, exchange))
    for stage, bucket in ((1, 0), (0, 1), (0, 0)):
        found.add(stage, bucket, 0, 0, [t(1.0)])
    assert [number for number, _ in exchange.seen] == [2, 1, 0]


def test_processes_that_keep_shards_of_sums_get_the_gradients_of_each_group() -> None:
    found, exchange = sink([[["a"]]], alone=True, micro_batches=2), Exchange(scatters=True)
    found.begin(cast(Any, exchange))
    found.add(0, 0, 0, 0, [t(1.0)])
    found.add(0, 0, 1, 0, [t(5.0)])
    assert exchange.seen == [(0, {"a": 1.0}), (0, {"a": 5.0})]


@pytest.mark.parametrize("alone", [True, False])
def test_a_call_that_failed_leaves_nothing(alone: bool) -> None:
    found = sink([[["a"]]], alone=alone, micro_batches=2)
    found.begin(None)
    found.add(0, 0, 0, 0, [t(100.0)])
    found.begin(None)
    for micro in range(2):
        found.add(0, 0, micro, 0, [t(1.0)])
    assert plain(found.take()) == {"a": 2.0}
