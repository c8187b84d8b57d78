"""Pipelines over two processes in which something is special, or goes wrong.

``python pipeline_faults.py <process> <processes> <what> [<folder>]`` is one process of such a job.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import poptorch
from pipeline_cases import CASES, STEPS, Case, Net

CASE = CASES["adamw"]


def options_for(process: int, case: Case = CASE) -> poptorch.Options:
    options = poptorch.Options().randomSeed(11)
    options.Training.gradientAccumulation(case.accumulation)
    options.Distributed.configureProcessId(process, 2).processesPerReplica(2)
    return options


def train_until(process: int, disturb: Callable[[int], None]) -> None:
    model = Net()
    executor = poptorch.trainingModel(model, options_for(process), poptorch.optim.AdamW(model.parameters(), lr=0.01))
    try:
        for step in range(STEPS):
            disturb(step)
            executor(*CASE.data(0, 1, step))
    except poptorch.Error as error:
        print(f"{type(error).__name__} {getattr(error, 'recovery_action', '')}: {error.message}", flush=True)
        try:
            executor(*CASE.data(0, 1, 0))
        except poptorch.Error as again:
            print(f"again {type(again).__name__}", flush=True)
        sys.exit(5)
    print("went on to the end")


def killed(process: int) -> None:
    """The second process, which has the second stage, dies before its part of a call."""
    train_until(process, lambda step: os.kill(os.getpid(), 9) if (process, step) == (1, 3) else None)


def first_killed(process: int) -> None:
    """The first one, at which the processes have met."""
    train_until(process, lambda step: os.kill(os.getpid(), 9) if (process, step) == (0, 3) else None)


def stopped(process: int) -> None:
    """The second one is halted."""
    train_until(process, lambda step: os.kill(os.getpid(), signal.SIGSTOP) if (process, step) == (1, 3) else None)


def interrupted(process: int) -> None:
    """The user interrupts the first process while it waits for the second one."""

    def disturb(step: int) -> None:
        if step == 3 and process == 0:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        if step == 3 and process == 1:
            time.sleep(4)

    try:
        train_until(process, disturb)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        time.sleep(8)  # the others must not depend on the end of this process
        sys.exit(6)


def broken(process: int) -> None:
    """The code of a stage fails in one process."""

    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> Any:
            out, loss = self.net(x, y)
            with poptorch.Block("end", ipu_id=1):
                return out[index], loss

    model = Fragile()
    executor = poptorch.trainingModel(model, options_for(process), poptorch.optim.SGD(model.parameters(), lr=0.1))
    index = torch.zeros(CASE.accumulation, dtype=torch.int64)
    try:
        for step in range(STEPS):
            executor(*CASE.data(0, 1, step), index + (1000 if step == 3 else 0))
    except Exception as error:  # noqa: BLE001  (whatever it is)
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(5)


def meta(process: int, folder: str) -> None:
    """A model of which each process has its own stages only."""
    with torch.device("meta"):
        model = Net()
    options = options_for(process)
    example = CASE.data(0, 1, 0)
    own = poptorch.tensorsOfProcess(model, options, *example)
    values = Net().state_dict()
    model.load_state_dict({name: values[name] for name in own}, strict=False, assign=True)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    executor = poptorch.trainingModel(model, options, optimizer)
    losses = [executor(*CASE.data(0, 1, step))[1] for step in range(STEPS)]
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items() if not tensor.is_meta}
    state = optimizer.state_dict()["ipu_state"]
    torch.save({"own": own, "trained": trained, "losses": losses, "state": state}, f"{folder}/{process}.pt")
    executor.destroy()
    missing(process)


def missing(process: int) -> None:
    """The second process forgets to give values to its stage."""
    model = Net()
    if process == 1:
        model.layers[1] = nn.Linear(6, 6, device="meta")
    refused("missing", model, process)


def refused(what: str, model: nn.Module, process: int) -> None:
    """Print what a process is told that cannot train a model."""
    executor = poptorch.trainingModel(model, options_for(process), poptorch.optim.SGD(model.parameters(), lr=0.1))
    try:
        executor(*CASE.data(0, 1, 0))
    except poptorch.Error as error:
        print(f"{what}: {error.message}", flush=True)


def resumed(process: int, folder: str) -> None:
    """Training goes on from what each process saved, with the same bits."""

    def trainer() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = Net(dropout=0.3)
        optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, poptorch.trainingModel(model, options_for(process), optimizer)

    model, optimizer, executor = trainer()
    for step in range(2):
        executor(*CASE.data(0, 1, step))
    torch.save([model.state_dict(), optimizer.state_dict(), executor.rng_state], f"{folder}/saved-{process}.pt")
    for step in range(2, 4):
        executor(*CASE.data(0, 1, step))
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    executor.destroy()
    model, optimizer, executor = trainer()
    weights, state, random = torch.load(f"{folder}/saved-{process}.pt")
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    executor.compile(*CASE.data(0, 1, 2))
    executor.rng_state = random
    for step in range(2, 4):
        executor(*CASE.data(0, 1, step))
    equal = all(torch.equal(expected[name], tensor) for name, tensor in model.state_dict().items())
    print("bit-equal" if equal else "different")


def unequal(process: int) -> None:
    """The processes have different models."""
    refused("unequal", Net(dropout=0.1 * process), process)


def calm(process: int, folder: str) -> None:
    """All that goes well, or fails before anything runs."""
    meta(process, folder)
    resumed(process, folder)
    unequal(process)


if __name__ == "__main__":
    globals()[sys.argv[3]](int(sys.argv[1]), *sys.argv[4:])
