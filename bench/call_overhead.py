"""What calling a wrapped model costs beside the eager module: a one-op model, microseconds and ratio.

python bench/call_overhead.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import poptorch


class AddOne(torch.nn.Module):
    """The smallest model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def microseconds(function, argument, calls: int) -> float:
    """Mean time of one call."""
    start = time.perf_counter()
    for _ in range(calls):
        function(argument)
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=500)
    arguments = parser.parse_args()
    eager = AddOne()
    wrapped = poptorch.inferenceModel(AddOne())
    x = torch.zeros(4)
    wrapped(x), eager(x)
    ours, theirs = [], []
    for _ in range(arguments.rounds):  # interleaved, so that a noisy moment hits both
        theirs.append(microseconds(eager, x, arguments.calls))
        ours.append(microseconds(wrapped, x, arguments.calls))
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(f"eager {other:.1f} us   wrapped {mine:.1f} us   difference {mine - other:.1f} us   ratio {mine / other:.2f}")


if __name__ == "__main__":
    main()
