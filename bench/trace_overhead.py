"""What a trace costs: the time of a training call with PVTI_OPTIONS and without, in processes of their own.

    python bench/trace_overhead.py [--rounds 5] [--calls 200]

Processes with and without a trace take turns. Each one reports the shortest of its calls, which other programs on the
machine disturb least; the result is the median over all rounds.
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


def measure(calls: int) -> float:
    """Seconds of the fastest call of a small pipeline, after a few calls to warm up."""
    import torch
    from torch import nn

    import poptorch

    class Pipeline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            last = poptorch.BeginBlock(nn.Linear(256, 10), ipu_id=1)
            self.layers = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), last)

        def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.layers(x), label)

    model = Pipeline()
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.01))
    x, label = torch.randn(8 * 64, 256), torch.zeros(8 * 64, dtype=torch.long)
    fastest = float("inf")
    for number in range(calls):
        begun = time.perf_counter()
        executor(x, label)
        if number >= min(10, calls // 2):
            fastest = min(fastest, time.perf_counter() - begun)
    return fastest


def measured_apart(calls: int, traced: bool) -> float:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        environment.pop("PVTI_OPTIONS", None)
        if traced:
            environment["PVTI_OPTIONS"] = json.dumps({"enable": "true", "directory": folder})
        command = [sys.executable, __file__, "--measure", "--calls", str(calls)]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Print both times and the overhead."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--measure", action="store_true", help="measure this process and print seconds")
    given = parser.parse_args()
    if given.measure:
        print(measure(given.calls))
        return
    times = [(measured_apart(given.calls, False), measured_apart(given.calls, True)) for _ in range(given.rounds)]
    plain, traced = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"without {plain * 1e3:.3f} ms, with {traced * 1e3:.3f} ms: {traced / plain - 1:+.1%}")


if __name__ == "__main__":
    main()
