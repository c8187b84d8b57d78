"""What a call of a wrapped model costs beside the kernels that it runs: microseconds of one thread, and its shares.

    python bench/call_overhead.py

Models are one operation, and three small layers as inference and as training step. *kernels* is the code of the host
program alone, on the arguments of a call; *engine* what is around it on the virtual device; *session* what is around
that: arguments, changes of weights and optimizer, results. The clock is the processor time of the thread, and the best
of several spells counts: what runs beside it shows least.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import poptorch


class AddOne(nn.Module):
    """The smallest model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class ThreeLayers(nn.Module):
    """Three small layers, and a loss if there is a target."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        y = self.net(x)
        return y if target is None else nn.functional.mse_loss(y, target)


def microseconds(calls: dict[str, Callable[[], object]], rounds: int, count: int) -> dict[str, float]:
    """The best mean time of a call, in turn."""
    best = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.thread_time()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.thread_time() - started) / count * 1e6)
    return best


def kernels_of(executor: Any, call: Callable[[], object]) -> Callable[[], object]:
    """The code that a call runs, with the arguments that it is given."""
    seen: list[Any] = []
    code = executor.executable.code

    def spy(run: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            seen[:] = [run, arguments]
            return run(*arguments)

        return noted

    def noticed(part: Any) -> Any:
        return None if part is None else dataclasses.replace(part, run=spy(part.run))

    stage = dataclasses.replace(code.stages[0], code=noticed(code.stages[0].code))
    executor._session.install(dataclasses.replace(code, stages=(stage, *code.stages[1:]), step=noticed(code.step)))
    call()
    executor._session.install(code)
    run, arguments = seen

    def kernels() -> None:
        with torch.no_grad():
            run(*arguments)

    return kernels


def row(name: str, executor: Any, eager: Callable[[], object], inputs: tuple[torch.Tensor, ...], chosen: Any) -> str:
    """One model."""

    def call() -> object:
        return executor(*inputs)

    for _ in range(20):
        call()
    session = executor._session
    given = list(inputs)
    calls = {
        "eager": eager,
        "kernels": kernels_of(executor, call),
        "engine": lambda: session.engine.run(given),
        "call": call,
    }
    took = microseconds(calls, chosen.rounds, chosen.calls)
    over = took["call"] - took["kernels"]
    shares = f"engine {took['engine'] - took['kernels']:5.1f}   session {took['call'] - took['engine']:5.1f}"
    return f"{name:20} eager {took['eager']:6.1f}   ours {took['call']:6.1f}   kernels {took['kernels']:6.1f}   " + (
        f"over the kernels {over:5.1f}: {shares}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--level", default="interpret", choices=("interpret", "native"))
    chosen = parser.parse_args()
    os.environ["POPTORCH_CODEGEN"] = chosen.level
    torch.set_num_threads(1)
    x, target = torch.randn(4, 16), torch.randn(4, 4)
    one, layers, trained = AddOne(), ThreeLayers().eval(), ThreeLayers()
    plain = ThreeLayers()
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-3)

    def inference(model: nn.Module) -> Callable[[], object]:
        def call() -> object:
            with torch.inference_mode():
                return model(x)

        return call

    def step() -> None:
        optimizer.zero_grad()
        plain(x, target).backward()
        optimizer.step()

    print(row("one operation", poptorch.inferenceModel(AddOne()), inference(one), (x,), chosen))
    print(row("three layers", poptorch.inferenceModel(ThreeLayers().eval()), inference(layers), (x,), chosen))
    ours = poptorch.trainingModel(trained, optimizer=torch.optim.SGD(trained.parameters(), lr=1e-3))
    print(row("three layers, train", ours, step, (x, target), chosen))


if __name__ == "__main__":
    main()
