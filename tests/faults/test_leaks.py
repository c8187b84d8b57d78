"""Compiled models that were destroyed leave nothing in memory."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch

BOUND_PER_EXECUTOR = 5 * 2**20 / 300
"""Bytes: 300 executors may let a program grow by 5 MiB."""


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layers(x)
        return y, nn.functional.cross_entropy(y, label)


def train_and_destroy() -> None:
    model = Classifier()
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    executor(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))
    executor.destroy()


def live_objects() -> Counter[str]:
    gc.collect()
    return Counter(f"{type(it).__module__}.{type(it).__qualname__}" for it in gc.get_objects())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_captured_graphs_go_with_their_executor() -> None:
    train_and_destroy()
    before, tries = live_objects(), 5
    for _ in range(tries):
        train_and_destroy()
    grown = live_objects() - before
    print(f"{tries} executors compiled and destroyed")
    ours = {name: count for name, count in grown.items() if name.startswith(("poptorch.", "torch.fx."))}
    assert all(count < tries for count in ours.values()), ours


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the system's account of memory")
def test_memory_stays_the_same_over_300_executors() -> None:
    for _ in range(100):  # caches of torch and of the allocator fill up
        train_and_destroy()
    gc.collect()
    before, tries = resident_bytes(), 300
    for _ in range(tries):
        train_and_destroy()
    gc.collect()
    print(f"{tries} executors compiled and destroyed: {(resident_bytes() - before) / 2**20:.1f} MiB more")
    assert resident_bytes() - before < BOUND_PER_EXECUTOR * tries
