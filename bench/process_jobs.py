"""What the processes of a measured job do. ``bench/hosts.py`` starts them; process 0 prints JSON in its last line.

python bench/hosts.py 4 bench/process_jobs.py transport
python bench/hosts.py 4 bench/process_jobs.py train
python bench/hosts.py 1 bench/process_jobs.py compute
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from contenders import contender
from data_parallel_models import LARGE, SMALL
from transport import Collective

from poptorch.distributed import process_group

SIZES = (4, 64, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
"""Bytes of the whole tensor."""

LONG_ENOUGH = 0.02
"""Seconds for which short operations are repeated."""

WEAK = {"mlp": 64, "bert-small": 2, "resnet-18": 8}
"""Samples of each process, however many processes there are."""

STRONG = {"bert-small": 16}
"""Samples of all processes together."""

COUNTS = (1, 2, 4, 8)
"""Numbers of processes."""

RANK, PROCESSES = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def checked_cases(processes: int) -> list[tuple[str, int]]:
    """Models, and samples of each process, that so many processes train. One process trains them all.

    >>> checked_cases(4)
    [('mlp', 64), ('bert-small', 2), ('resnet-18', 8), ('bert-small', 4)]
    """
    counts = COUNTS if processes == 1 else (processes,)
    divided = [(name, samples // count) for name, samples in STRONG.items() for count in counts]
    return list(dict.fromkeys([*WEAK.items(), *divided]))


def _operations(group: process_group.ProcessGroup, size: int) -> dict[Collective, Callable[[], None]]:
    """Each collective on a tensor of this size; parts of processes have one element at least."""
    whole = torch.ones(size // 4)
    part = torch.ones(max(1, size // 4 // group.size))
    parts = torch.ones(part.numel() * group.size)
    operations = {
        Collective.ALL_REDUCE: lambda: group.start_sum(whole.fill_(1)).wait(),
        Collective.REDUCE_SCATTER: lambda: group.start_scatter_sum(parts, part).wait(),
        Collective.ALL_GATHER: lambda: group.start_gather_parts(part, parts).wait(),
    }
    if group.size == 2:
        operations[Collective.POINT_TO_POINT] = lambda: _there_and_back(whole)
    return operations


def _there_and_back(tensor: torch.Tensor) -> None:
    for sender in (0, 1):
        if sender == RANK:
            dist.send(tensor, 1 - RANK)
        else:
            dist.recv(tensor, 1 - RANK)


def _slowest(seconds: float) -> float:
    """The longest time of all processes."""
    group = process_group.current()
    if group is None:
        return seconds
    return group.reduce(torch.tensor([seconds], dtype=torch.float64), dist.ReduceOp.MAX).item()


def _timed(call: Callable[[], object], repeats: int = 1) -> float:
    """Seconds of one call in the slowest process; processes start together."""
    _slowest(0.0)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return _slowest((time.perf_counter() - start) / repeats)


def _take_turns(calls: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """The times of all calls. They take turns, so a noisy moment of the machine hits all of them."""
    for call in calls:
        call()
    repeats = [max(1, min(200, int(LONG_ENOUGH / _timed(call)))) for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for place, call in enumerate(calls):
            times[place].append(_timed(call, repeats[place]))
    return times


def _summary(seconds: list[float]) -> dict[str, float]:
    return {"seconds": statistics.median(seconds), "fastest": min(seconds)}


def transport(rounds: int) -> list[dict[str, Any]]:
    """Times of all operations and sizes."""
    group = process_group.ensure_initialized(RANK, PROCESSES)
    if PROCESSES == 2:
        dist.init_process_group("gloo", rank=RANK, world_size=PROCESSES)  # for what our group does not do
    work = [(size, name, call) for size in SIZES for name, call in _operations(group, size).items()]
    found = []
    for (size, name, _), times in zip(work, _take_turns([call for _, _, call in work], rounds), strict=True):
        each = [it / 2 for it in times] if name is Collective.POINT_TO_POINT else times  # there and back
        found.append({"collective": name.value, "processes": PROCESSES, "size": size, **_summary(each)})
    if dist.is_initialized():
        dist.destroy_process_group()
    return found


def train(rounds: int) -> list[dict[str, Any]]:
    """Times of training steps of small models."""
    cases = checked_cases(PROCESSES)
    calls = [contender("ours-interpret", SMALL[name](samples), "train-sgd").call for name, samples in cases]
    times = _take_turns(calls, rounds)
    return [
        {"model": name, "samples": samples, "processes": PROCESSES, **_summary(seconds)}
        for (name, samples), seconds in zip(cases, times, strict=True)
    ]


def compute(rounds: int) -> list[dict[str, Any]]:
    """Times of training steps of the large models in one process."""
    found = []
    for model in LARGE:
        for samples in model.measured:
            call = contender("ours-interpret", model.trainable(samples), "train-sgd").call
            (seconds,) = _take_turns([call], rounds)
            found.append({"model": model.name, "samples": samples, **_summary(seconds)})
    return found


JOBS = {"transport": transport, "train": train, "compute": compute}


def main() -> None:
    """Run one process's part of a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=JOBS)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    print(json.dumps(JOBS[chosen.what](chosen.rounds)))


if __name__ == "__main__":
    main()
