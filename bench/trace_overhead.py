"""What a trace costs: the time of training calls with PVTI_OPTIONS and without.

    python bench/trace_overhead.py [--rounds 9] [--seconds 3]

Two pipelines of two stages: one whose jobs take a fraction of a millisecond, and one with layers of a usual size. One
process has both contenders, the same model with a trace and without, which take turns of a few calls; two processes
differ by more than a trace costs. All calls count, those that write the file among them. Each round has two new models,
as some lie better in memory than others; the result is the median over all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

WIDTHS = {"small": 256, "usual": 1024}
MICRO_BATCHES = 8
ROWS = 64
CALLS = 5
"""In one turn."""


def executor(name: str, traced: bool) -> Callable[[], object]:
    """A training call of a pipeline."""
    import torch
    from torch import nn

    import poptorch
    from poptorch.profiling import channel

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
    channel.enabled = traced  # asked when an executor is made
    made = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.01))
    x, label = torch.randn(MICRO_BATCHES * ROWS, width), torch.zeros(MICRO_BATCHES * ROWS, dtype=torch.long)
    return lambda: made(x, label)


def seconds_of(call: Callable[[], object], calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - begun


def overhead(name: str, seconds: float) -> tuple[float, float]:
    """Milliseconds of a call without a trace, and by which part of that a trace makes it longer."""
    contenders = [executor(name, traced) for traced in (False, True)]
    for call in contenders:
        seconds_of(call, 2 * CALLS)
    turns = max(4, round(seconds / seconds_of(contenders[0], CALLS) / 2))
    times = [[seconds_of(call, CALLS) for call in contenders] for _ in range(turns)]
    plain, traced = (sum(column) for column in zip(*times, strict=True))
    return plain / turns / CALLS * 1e3, traced / plain - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one round")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PVTI_OPTIONS"] = json.dumps({"enable": "true", "directory": folder})
        os.environ["POPTORCH_GROUP"] = "1"  # a span for each micro-batch: as many as there can be
        for name in WIDTHS:
            times, overheads = zip(*(overhead(name, given.seconds) for _ in range(given.rounds)), strict=True)
            spread = f"{min(overheads):+.1%} to {max(overheads):+.1%}"
            time_of_call, added = statistics.median(times), statistics.median(overheads)
            print(f"{name}: {time_of_call:.2f} ms, with a trace {added:+.1%} ({spread})", flush=True)
        from poptorch.profiling import channel

        assert channel.trace_file is not None
        channel.trace_file.flush()  # while its folder is there


if __name__ == "__main__":
    main()
