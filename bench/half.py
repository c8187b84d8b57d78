"""float16 on a CPU: a BERT-small training step and a convnet's inference.

Each is measured three ways in one process, turn by turn: eager float16, ours in float16, ours in float32. The ratios
that matter are printed last: how many times faster than eager float16 we are (reach: 10), and what float16 costs
against our own float32 (reach: 0.7 of its speed).

    PYTHONPATH=src python bench/half.py [--rounds 5] [--threads 2]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import poptorch

sys.path.insert(0, str(Path(__file__).parent))
from workloads import WORKLOADS, Workload

Step = Callable[[], object]


def in_type(tensors: tuple[torch.Tensor, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Floating-point inputs in ``dtype``; indices as they are."""
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in tensors)


def training_steps(workload: Workload) -> dict[str, Step]:
    """One optimizer step each, SGD with momentum, so that the update has state."""

    def eager() -> Step:
        torch.manual_seed(0)
        model = workload.model().half().train()
        inputs = (*in_type(workload.inputs(), torch.float16), workload.target())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def step() -> object:
            optimizer.zero_grad()
            loss = model(*inputs)
            loss.backward()
            optimizer.step()
            return loss

        return step

    def ours(dtype: torch.dtype) -> Step:
        torch.manual_seed(0)
        model = workload.model().to(dtype).train()
        inputs = (*in_type(workload.inputs(), dtype), workload.target())
        optimizer = poptorch.optim.SGD(
            model.parameters(), lr=1e-3, momentum=0.9, use_combined_accum=False, accum_type=dtype
        )
        wrapped = poptorch.trainingModel(model, optimizer=optimizer)
        return lambda: wrapped(*inputs)

    return {"eager float16": eager(), "ours float16": ours(torch.float16), "ours float32": ours(torch.float32)}


def inference_steps(workload: Workload) -> dict[str, Step]:
    """One forward pass each."""

    def eager() -> Step:
        torch.manual_seed(0)
        model = workload.model().half().eval()
        inputs = in_type(workload.inputs(), torch.float16)

        def step() -> object:
            with torch.inference_mode():
                return model(*inputs)

        return step

    def ours(dtype: torch.dtype) -> Step:
        torch.manual_seed(0)
        model = poptorch.inferenceModel(workload.model().to(dtype).eval())
        inputs = in_type(workload.inputs(), dtype)
        return lambda: model(*inputs)

    return {"eager float16": eager(), "ours float16": ours(torch.float16), "ours float32": ours(torch.float32)}


def milliseconds(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """The median time of each, all of them in every round."""
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def report(title: str, times: dict[str, float]) -> None:
    """The times and the two ratios."""
    print(title)
    for name, value in times.items():
        print(f"  {name:<14} {value:10.2f} ms")
    print(f"  against eager float16: {times['eager float16'] / times['ours float16']:.1f}x (reach 10)")
    print(f"  against our float32:   {times['ours float32'] / times['ours float16']:.2f}x (reach 0.7)")


def main() -> None:
    """Measure both and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads")
    report("BERT-small, training step", milliseconds(training_steps(WORKLOADS["bert-small"]), arguments.rounds))
    report("convnet, inference", milliseconds(inference_steps(WORKLOADS["resnet18-64"]), arguments.rounds))


if __name__ == "__main__":
    main()
