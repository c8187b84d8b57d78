"""What a trace costs: the time of training calls with PVTI_OPTIONS and without, in processes of their own.

    python bench/trace_overhead.py [--rounds 7] [--seconds 3]

Two pipelines of two stages: one whose jobs take a fraction of a millisecond, and one with layers of a usual size.
A process with a trace and one without wait for their turns, in each of which they make some calls; so what else happens
on the machine hits both. All calls count, those that write the file among them. The result is the median over turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

WIDTHS = {"small": 256, "usual": 1024}
MICRO_BATCHES = 8
ROWS = 64


def answer(name: str) -> None:
    """One process: for each number of calls that it reads, it writes the seconds of one of them."""
    import torch
    from torch import nn

    import poptorch

    width = WIDTHS[name]

    class Pipeline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(width, width), nn.ReLU())
            self.second = poptorch.BeginBlock(nn.Sequential(nn.Linear(width, width), nn.ReLU()), ipu_id=1)
            self.last = nn.Linear(width, 10)

        def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.last(self.second(self.first(x))), label)

    model = Pipeline()
    options = poptorch.Options()
    options.Training.gradientAccumulation(MICRO_BATCHES)
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.01))
    x, label = torch.randn(MICRO_BATCHES * ROWS, width), torch.zeros(MICRO_BATCHES * ROWS, dtype=torch.long)
    for line in sys.stdin:
        calls = int(line)
        begun = time.perf_counter()
        for _ in range(calls):
            executor(x, label)
        print((time.perf_counter() - begun) / calls, flush=True)


class Contender:
    """A process that makes calls when it is asked."""

    def __init__(self, name: str, folder: str | None) -> None:
        environment = {**os.environ, "POPTORCH_GROUP": "1"}  # a span for each micro-batch, as many as there can be
        environment.pop("PVTI_OPTIONS", None)
        if folder is not None:
            environment["PVTI_OPTIONS"] = json.dumps({"enable": "true", "directory": folder})
        command = [sys.executable, __file__, "--answer", name]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def turn(self, calls: int) -> float:
        """Seconds of a call, on average."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """Let it write the rest of its file."""
        self._process.communicate()


def compare(name: str, rounds: int, seconds: float) -> None:
    """Print both times and the overhead."""
    with tempfile.TemporaryDirectory() as folder:
        plain, traced = contenders = Contender(name, None), Contender(name, folder)
        for contender in contenders:
            contender.turn(20)
        calls = max(10, round(seconds / plain.turn(20)))
        pairs = [(plain.turn(calls), traced.turn(calls)) for _ in range(rounds)]
        for contender in contenders:
            contender.end()
    without, with_trace = (statistics.median(column) for column in zip(*pairs, strict=True))
    overhead = statistics.median(b / a - 1 for a, b in pairs)
    print(f"{name}: without {without * 1e3:.3f} ms, with {with_trace * 1e3:.3f} ms: {overhead:+.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one turn")
    parser.add_argument("--answer", choices=tuple(WIDTHS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer is not None:
        answer(given.answer)
        return
    for name in WIDTHS:
        compare(name, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
