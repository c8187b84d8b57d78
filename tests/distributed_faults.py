"""What goes wrong in jobs of several processes.

``python distributed_faults.py <process> <processes> <what> [<folder>]`` is one process of such a job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import poptorch
from distributed_cases import FEATURES, ROWS, Net
from poptorch.distributed import process_group
from poptorch.distributed.exchange import ProcessExchange
from poptorch.host import build

BUCKETS = 4
"""Of the model here, when each gradient leaves by itself."""


class Stochastic(nn.Module):
    """Draws numbers, so that the random state counts too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.net = Net(dropout=0.3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.net(x, y)


def options_for(process: int, processes: int) -> poptorch.Options:
    options = poptorch.Options().randomSeed(7)
    options.Distributed.configureProcessId(process, processes)
    return options


def batch(process: int, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * process + step)
    return [torch.randn(ROWS, features, generator=generator) for features in (FEATURES, 2)]


def trainer(process: int, processes: int) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = Stochastic()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, poptorch.trainingModel(model, options_for(process, processes), optimizer)


def say_when(what: str) -> None:
    """The clock is the same for all processes of a machine."""
    print(f"{what} at {time.monotonic():.3f}", flush=True)


def report(error: poptorch.Error) -> None:
    say_when("raised")
    print(f"{type(error).__name__} {getattr(error, 'recovery_action', '')}: {error.message}", flush=True)
    sys.exit(5)


def train_until(process: int, processes: int, disturb: Callable[[int], None], steps: int = 1000) -> None:
    _, _, executor = trainer(process, processes)
    try:
        for step in range(steps):
            disturb(step)
            executor(*batch(process, step))
    except poptorch.Error as error:
        report(error)
    print("went on to the end")


# -- one process is lost ---------------------------------------------------------------------------------------------


def die() -> None:
    say_when("killed")
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_the_next_exchange() -> None:
    """Kill this process in the middle of a step: the exchange of gradients has begun, and the update has not."""
    start = process_group.ProcessGroup.start_sum

    def start_and_die(group: process_group.ProcessGroup, tensor: torch.Tensor) -> Any:
        start(group, tensor)
        die()

    process_group.ProcessGroup.start_sum = start_and_die  # type: ignore[method-assign]


def killed(process: int, processes: int) -> None:
    train_until(process, processes, lambda step: die_in_the_next_exchange() if (process, step) == (2, 3) else None)


def first_killed(process: int, processes: int) -> None:
    train_until(process, processes, lambda step: die() if (process, step) == (0, 3) else None)


def stopped(process: int, processes: int) -> None:
    def disturb(step: int) -> None:
        if (process, step) == (1, 3):
            os.kill(os.getpid(), signal.SIGSTOP)

    train_until(process, processes, disturb)


def ended(process: int, processes: int) -> None:
    train_until(process, processes, lambda step: sys.exit(0) if (process, step) == (1, 3) else None)


def in_the_middle(what: Callable[[], None], process: int, at: int, processes: int) -> None:
    """Something happens to a process when some gradients of the fourth step have left, and others have not."""
    build.EXCHANGE_BYTES = 1
    started = 0
    start = ProcessExchange.start

    def disturbed(self: ProcessExchange, gradients: Any, held: Any) -> Any:
        nonlocal started
        started += 1
        if process == at and started == 3 * BUCKETS + 2:
            what()
        return start(self, gradients, held)

    ProcessExchange.start = disturbed  # type: ignore[method-assign]
    train_until(process, processes, lambda step: None)


def killed_in_the_middle(process: int, processes: int) -> None:
    in_the_middle(lambda: os.kill(os.getpid(), signal.SIGKILL), process, 1, processes)


def stopped_in_the_middle(process: int, processes: int) -> None:
    in_the_middle(lambda: os.kill(os.getpid(), signal.SIGSTOP), process, 1, processes)


def failed_in_the_middle(process: int, processes: int) -> None:
    """A process whose call fails goes on, and finds that the job has ended."""

    def fail() -> None:
        raise poptorch.Error("something else")

    build.EXCHANGE_BYTES = 1
    try:
        in_the_middle(fail, process, 1, processes)
    except SystemExit:
        if process == 1:
            train_until(process, processes, lambda step: None)
        raise


def restarted(process: int, processes: int, folder: str) -> None:
    """Killed in the middle, then started again from what was saved, then trained without a disturbance."""
    saved = Path(folder) / f"{process}.pt"
    if not saved.exists():
        model, optimizer, executor = trainer(process, processes)
        for step in range(3):
            executor(*batch(process, step))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": executor.rng_state}
        torch.save(state, saved)
        try:
            executor(*batch(process, 3))
            if process == 1:
                die_in_the_next_exchange()
            executor(*batch(process, 4))
        except poptorch.Error as error:
            report(error)
    model, optimizer, executor = trainer(process, processes)
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    executor.compile(*batch(process, 3))
    executor.rng_state = state["random"]
    for step in range(3, 6):
        executor(*batch(process, step))
    resumed = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    executor.destroy()
    model, _, executor = trainer(process, processes)
    for step in range(6):
        executor(*batch(process, step))
    equal = all(torch.equal(resumed[name], tensor) for name, tensor in model.state_dict().items())
    print("bit-equal" if equal else "different")


# -- a start that cannot work ------------------------------------------------------------------------------------


def counts(process: int, processes: int) -> None:
    """The last process believes that there is one more."""
    train_until(process, processes + (process == processes - 1), lambda step: None, steps=1)


def same_number(process: int, processes: int) -> None:
    """The last one says that it is the one before."""
    train_until(min(process, processes - 2), processes, lambda step: None, steps=1)


def undisturbed(process: int, processes: int) -> None:
    model, _, executor = trainer(process, processes)
    try:
        for step in range(3):
            executor(*batch(process, step))
    except poptorch.Error as error:
        report(error)
    print("weights:", sum(p.double().sum().item() for p in model.parameters()))


def late(process: int, processes: int, seconds: str) -> None:
    if process == 1:
        time.sleep(float(seconds))
    train_until(process, processes, lambda step: None, steps=2)


# -- processes that disagree -----------------------------------------------------------------------------------------


class Fails(nn.Module):
    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 2)
        self.fails = fails

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        if self.fails:
            raise ValueError("no such thing")
        out = self.layer(x)
        return out, poptorch.identity_loss((out - y).pow(2).mean(), reduction="none")


def _attempt(what: str, model: nn.Module, options: poptorch.Options, lr: float, rows: int, process: int) -> None:
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=lr))
    try:
        executor(*[t.repeat(rows, 1) for t in batch(process, 0)])
        print(f"{what}: works", flush=True)
    except Exception as error:  # noqa: BLE001  what it says is looked at by the test
        print(f"{what}: {type(error).__name__}: {error}".replace("\n", " "), flush=True)
    executor.destroy()


def disagreements(process: int, processes: int) -> None:
    odd = process == 1

    def options() -> poptorch.Options:
        return options_for(process, processes)

    _attempt("model", Net(dropout=0.5 if odd else 0.0), options(), 0.1, 1, process)
    accumulating = options()
    accumulating.Training.gradientAccumulation(4 if odd else 2)
    _attempt("options", Net(), accumulating, 0.1, 4, process)
    _attempt("learning rate", Net(), options(), 0.2 if odd else 0.1, 1, process)
    _attempt("rows", Net(), options(), 0.1, 2 if odd else 1, process)
    _attempt("failure", Fails(odd), options(), 0.1, 1, process)
    torch.manual_seed(process)
    model = Fails(False)
    _attempt("weights", model, options().randomSeed(process), 0.1, 1, process)
    torch.manual_seed(0)
    print("same weights:", model.layer.weight.sum().item())
    _attempt("after all", Net(), options(), 0.1, 1, process)
    alone = options()
    alone.Distributed.disable()
    if odd:  # nobody else trains this one
        _attempt("alone", Net(), alone, 0.1, 1, process)
    if odd:  # a part of the group waits for its members only
        with process_group.use_only({1}) as part:
            print("members:", part.gather_values({"process": process}))
    inference = poptorch.inferenceModel(Net(), options())
    if odd:  # inference waits for no other process
        print("inference:", tuple(inference(*batch(process, 0))[0].shape))


def main() -> None:
    process, processes, what, *rest = sys.argv[1:]
    globals()[what](int(process), int(processes), *rest)


if __name__ == "__main__":
    main()
