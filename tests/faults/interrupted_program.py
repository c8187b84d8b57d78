"""A program that trains until Ctrl-C comes, many times: each try is a fork, so that torch is imported once.

Usage: ``interrupted_program.py <tries> <sharing strategy>``. Writes one line of JSON for each try: how the program
ended, how long that took, which of its processes and which of its shared memory were left.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import torch
from staged_classifier import StagedClassifier
from torch import nn

import poptorch
from poptorch.host import width

PATIENCE_S = 20.0
"""The end of any program that has imported torch takes seconds on a busy machine."""

ROWS = 12


class Items(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((64,), float(index % 7)), torch.tensor(index % 3)


def options_of(strategy: str) -> poptorch.Options:
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(3)
    if strategy != "pipelined":
        options.setExecutionStrategy(poptorch.ShardedExecution())
    if strategy == "replicated":
        options.replicationFactor(2)
    return options


def executor_of(strategy: str):
    model = StagedClassifier(strategy == "pipelined", 64, 64, nn.Tanh())
    return poptorch.trainingModel(model, options_of(strategy), poptorch.optim.SGD(model.parameters(), lr=0.01))


def loader_of(kind: str, options: poptorch.Options, sharing: str) -> poptorch.DataLoader:
    mode = poptorch.DataLoaderMode.Async if "async" in kind else poptorch.DataLoaderMode.Sync
    settings = {"sharing_strategy": poptorch.SharingStrategy[sharing]} if "async" in kind else None
    workers = 2 if "workers" in kind else 0
    return poptorch.DataLoader(options, Items(), 2, num_workers=workers, mode=mode, async_options=settings)


NOTHING = "nothing"
"""A program that waits for Ctrl-C, to see how long the end of any program takes on this machine."""

LOADERS = ["sync", "sync workers", "async", "async workers"]
STRATEGIES = ["sharded", "pipelined", "replicated"]


STEPS_OF_A_SHORT_EPOCH = 2
"""Whether the loop comes to their end or not, iterators go away all the time, and Ctrl-C comes while they do."""


def train(kind: str, strategy: str, sharing: str, short_epochs: bool, begun: int) -> None:
    if kind == NOTHING:
        os.write(begun, b"!")
        time.sleep(60)
    executor = executors[strategy]
    loader = loader_of(kind, options_of(strategy), sharing)
    steps = 0
    while True:
        for x, label in itertools.islice(loader, STEPS_OF_A_SHORT_EPOCH if short_epochs else None):
            executor(x, label)
            steps += 1
            if steps == 3:
                os.write(begun, b"!")


def descendants(root: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def interrupt(child: int, begun: int, delay_s: float, whole_group: bool) -> dict[str, object]:
    ready, _, _ = select.select([begun], [], [], 60)
    assert ready, "the program does not start"
    time.sleep(delay_s)
    below = descendants(child)
    sent = time.monotonic()
    (os.killpg if whole_group else os.kill)(child, signal.SIGINT)
    status = None
    while status is None and time.monotonic() < sent + PATIENCE_S:
        pid, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if pid else None
        time.sleep(0.01)
    took = time.monotonic() - sent
    while any(map(is_alive, below)) and time.monotonic() < sent + PATIENCE_S:
        time.sleep(0.01)
    orphans = [pid for pid in below if is_alive(pid)]
    if status is None:
        os.kill(child, signal.SIGABRT)  # shows where it is
        os.waitpid(child, 0)
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    prefixes = tuple(f"torch_{pid}_" for pid in (*below, child))
    shared = [it.name for it in Path("/dev/shm").iterdir() if it.name.startswith(prefixes)]
    return {"status": status, "took": took, "orphans": orphans, "shared": shared}


if __name__ == "__main__":
    width.WORTH_A_THREAD_SECONDS = 0.0  # workers run the pipeline, however small its stages are
    tries, sharing = int(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    executors = {strategy: executor_of(strategy) for strategy in STRATEGIES}
    for strategy, executor in executors.items():
        rows = ROWS * (2 if strategy == "replicated" else 1)
        executor.compile(torch.zeros(rows, 64), torch.zeros(rows, dtype=torch.long))
    chosen = random.Random(0)
    for attempt in range(-1, tries):
        kind = NOTHING if attempt < 0 else LOADERS[attempt % len(LOADERS)]
        strategy = STRATEGIES[attempt % len(STRATEGIES)]
        short_epochs = attempt // len(LOADERS) // len(STRATEGIES) % 2 == 1
        delay_s, whole_group = chosen.uniform(0, 0.1), chosen.random() < 0.5
        receiver, sender = os.pipe()
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            faulthandler.enable()
            train(kind, strategy, sharing, short_epochs, sender)
        os.setpgid(child, child)
        result = interrupt(child, receiver, delay_s, whole_group)
        os.close(receiver)
        os.close(sender)
        about = {"kind": kind, "strategy": strategy, "short epochs": short_epochs, "delay": delay_s}
        print(json.dumps({**about, **result}), flush=True)
