"""Two processes on two cores against torch's own ways to do the same, with gloo.

    PYTHONPATH=src python bench/distributed.py                # all rows, a few minutes after the first compilation
    PYTHONPATH=src python bench/distributed.py mlp sharded    # some of them
    PYTHONPATH=src python bench/distributed.py --quick        # tiny models: does everything run?

| row | ours | the others |
| --- | --- | --- |
| mlp, bert, convnet | gradients summed during back-propagation | DistributedDataParallel |
| sharded | AdamW with replicated tensor sharding | DDP with ZeroRedundancyOptimizer; FSDP |
| pipeline | a stage in each process | torch.distributed.pipelining, 1F1B |

All contenders of a row train the same model with the same batch on each process. They take turns of a few steps, and
medians are compared: ratios above one mean that we are faster. Memory is that of the steps of the larger process, as
``bench/memory.py`` counts it: a ratio of at most one means that we take less. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from measuring import CACHE
from multi_ipu import MICRO_BATCHES, QUICK, SHAPES, batch, pipelining_worker
from torch import nn
from two_processes import Step, TwoProcesses, answer, gloo
from workloads import WORKLOADS, Transformer, classify, mlp, resnet18

if TYPE_CHECKING:
    import poptorch  # functions import it: the processes of the others do not need it

STEPS = 5
"""In one turn."""

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Task:
    """A model that returns its loss, and the batch of one process."""

    model: Callable[[], nn.Module]
    data: Callable[[], Tensors]


def _workload(name: str) -> Task:
    workload = WORKLOADS[name]
    return Task(workload.model, lambda: (*workload.inputs(), workload.target()))


def _classes(rows: int) -> torch.Tensor:
    return torch.randint(0, 10, (rows,))


TASKS = {
    "mlp": _workload("mlp-large"),
    "bert": _workload("bert-small"),
    "convnet": _workload("resnet18-32"),
    "sharded": Task(lambda: classify(mlp([784, *[1536] * 6, 10])), lambda: (torch.randn(64, 784), _classes(64))),
}
TINY = {
    "mlp": Task(lambda: classify(mlp([8, 16, 16, 10])), lambda: (torch.randn(4, 8), _classes(4))),
    "bert": Task(
        lambda: classify(Transformer(50, 16, 2, 8, False, 10)), lambda: (torch.randint(0, 50, (2, 8)), _classes(2))
    ),
    "convnet": Task(lambda: classify(resnet18(4)), lambda: (torch.randn(2, 3, 8, 8), _classes(2))),
    "sharded": Task(lambda: classify(mlp([8, 128, 128, 10])), lambda: (torch.randn(4, 8), _classes(4))),
}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def prepared(task: Task) -> tuple[nn.Module, Tensors]:
    """The model, equal in both processes, and the data of this one."""
    torch.manual_seed(0)
    model = task.model().train()
    torch.manual_seed(1 + int(os.environ["RANK"]))
    return model, task.data()


# -- ours ----------------------------------------------------------------------------------------------------------


def ours(task: Task) -> Step:
    """Gradients are summed over the processes."""
    import poptorch

    model, data = prepared(task)
    executor = poptorch.trainingModel(model, _options(), sgd(model))
    return lambda: executor(*data)


def ours_sharded(task: Task) -> Step:
    """Each process holds half of the optimizer's state, and of the gradients."""
    import poptorch

    model, data = prepared(task)
    options = _options()
    options.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useReplicatedTensorSharding(True).minElementsForReplicatedTensorSharding(2)
    )
    executor = poptorch.trainingModel(model, options, torch.optim.AdamW(model.parameters(), lr=1e-4))
    return lambda: executor(*data)


def ours_pipeline(task: Task) -> Step:
    """One replica, whose two stages are in two processes."""
    from multi_ipu import Annotated, Body

    import poptorch

    torch.manual_seed(0)
    options = _options()
    options.Distributed.processesPerReplica(2)  # type: ignore[attr-defined]
    options.Training.gradientAccumulation(MICRO_BATCHES)
    model = Annotated(Body("mlp", _pipeline_shape()), 2)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=1e-3))
    data = batch("mlp", _pipeline_shape(), MICRO_BATCHES)
    return lambda: executor(*data)


def _options() -> poptorch.Options:
    import poptorch

    options = poptorch.Options().showCompilationProgressBar(False).broadcastBuffers(False)
    return options.enableExecutableCaching(str(CACHE / "distributed"))


# -- the others ----------------------------------------------------------------------------------------------------


def _training(model: nn.Module, data: Tensors, optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(*data).backward()
        optimizer.step()

    return step


def ddp(task: Task) -> Step:
    """Buffers stay with each process, as ours do."""
    from torch.nn.parallel import DistributedDataParallel

    model, data = prepared(task)
    parallel = DistributedDataParallel(model, forward_sync_buffers=False, gradient_as_bucket_view=True)
    return _training(parallel, data, sgd(parallel))


def zero(task: Task) -> Step:
    """The optimizer's state is divided, gradients are not."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model, data = prepared(task)
    parallel = DistributedDataParallel(model, forward_sync_buffers=False, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.AdamW, lr=1e-4)
    return _training(parallel, data, optimizer)


def fsdp(task: Task, reshard: bool = False) -> Step:
    """State and gradients are divided, and weights between steps; with ``reshard`` also between the passes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, data = prepared(task)
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return _training(model, data, torch.optim.AdamW(model.parameters(), lr=1e-4))


def fsdp_full(task: Task) -> Step:
    """The same with weights that are divided again after the forward pass of each layer."""
    return fsdp(task, reshard=True)


def pipelining(task: Task) -> Step:
    """As in ``bench/multi_ipu.py``."""
    return pipelining_worker("mlp", _pipeline_shape())


def _pipeline_shape() -> object:
    return (QUICK if os.environ.get("BENCH_QUICK") else SHAPES)["mlp"]


WORKERS: dict[str, Callable[[Task], Step]] = {
    "ours": ours,
    "ours, sharded": ours_sharded,
    "ours, pipeline": ours_pipeline,
    "DDP": ddp,
    "DDP with ZeRO": zero,
    "FSDP": fsdp,
    "FSDP, weights too": fsdp_full,
    "torch pipelining": pipelining,
}


# -- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One comparison."""

    mine: str
    others: Mapping[str, float | None]
    """Each with the goal for our speed."""

    memory: Mapping[str, float | None] | None = None
    """With the goal for our memory, if memory is compared."""


ROWS = {
    "mlp": Row("ours", {"DDP": 1.1}),
    "bert": Row("ours", {"DDP": 1.1}),
    "convnet": Row("ours", {"DDP": 1.1}),
    "sharded": Row(
        "ours, sharded",
        {"DDP with ZeRO": 1.0, "FSDP": 1.0, "FSDP, weights too": None},
        {"DDP with ZeRO": 1.0, "FSDP": 1.0, "FSDP, weights too": None},
    ),
    "pipeline": Row("ours, pipeline", {"torch pipelining": 1.2}),
}


def measure(name: str, row: Row, rounds: int) -> None:
    """Print the figures of one row."""
    contenders = {who: _started(name, who) for who in (row.mine, *row.others)}
    try:
        times = take_turns(contenders, rounds)
    finally:
        for contender in contenders.values():
            contender.end()
    for other, goal in row.others.items():
        ratio = times[other] / times[row.mine]
        _print(f"{name}: ms per step, {other}", times[row.mine] * 1e3, times[other] * 1e3, ratio, _goal(ratio, goal))
    if row.memory is not None:
        peaks = {who: _peak(name, who) for who in (row.mine, *row.memory)}
        for other, goal in row.memory.items():
            ratio = peaks[row.mine] / peaks[other]
            mark = "" if goal is None else f"  goal <= {goal:.2f}x" + "  (short of the goal)" * (ratio > goal)
            _print(f"{name}: MiB, {other}", peaks[row.mine], peaks[other], ratio, mark)


def _started(name: str, who: str) -> TwoProcesses:
    return TwoProcesses(__file__, "--worker", who, name)


def _peak(name: str, who: str) -> float:
    """In processes of their own: nothing else has left its traces there."""
    contender = _started(name, who)
    try:
        return contender.peak_memory()
    finally:
        contender.end()


def _goal(ratio: float, goal: float | None) -> str:
    return "" if goal is None else f"  goal {goal:.2f}x" + "  (short of the goal)" * (ratio < goal)


def _print(name: str, mine: float, other: float, ratio: float, goal: str) -> None:
    print(f"{name:<44} {mine:>9.2f} {other:>9.2f} {ratio:>7.2f}x{goal}", flush=True)


def take_turns(contenders: Mapping[str, TwoProcesses], rounds: int) -> dict[str, float]:
    """Medians; a noisy moment of the machine hits everybody."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for contender in contenders.values():
        contender.turn(2)  # compiles
    for _ in range(rounds):
        for name, contender in contenders.items():
            times[name].append(contender.turn(STEPS))
    return {name: statistics.median(each) for name, each in times.items()}


def available(names: Sequence[str]) -> list[str]:
    """The rows that this version can run."""
    import poptorch

    rows = list(names)
    if "pipeline" in rows and not hasattr(poptorch.Options().Distributed, "processesPerReplica"):
        print("pipeline: this version has no pipelines across processes")
        rows.remove("pipeline")
    return rows


def run_worker(who: str, name: str) -> None:
    """One of the two processes of a contender."""
    torch.set_num_threads(1)
    tasks = TINY if os.environ.get("BENCH_QUICK") else TASKS
    task = tasks.get(name, tasks["mlp"])  # the pipeline has a model of its own
    if who.startswith("ours"):
        answer(lambda: WORKERS[who](task))
        return
    with gloo():
        answer(lambda: WORKERS[who](task))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", help=f"what to compare (default: all of {', '.join(ROWS)})")
    parser.add_argument("--quick", action="store_true", help="tiny models, one turn: only to see that it runs")
    parser.add_argument("--rounds", type=int, default=None, help="turns of each contender (default: 9)")
    parser.add_argument("--level", choices=("interpret", "native"), default="native", help="the code of our programs")
    parser.add_argument("--worker", choices=tuple(WORKERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if arguments.worker is not None:
        run_worker(arguments.worker, arguments.rows[0])
        return
    os.environ["POPTORCH_CODEGEN"] = arguments.level
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(CACHE) / "inductor")
    if arguments.quick:
        os.environ["BENCH_QUICK"] = "1"
    print(f"{f'two processes, level {arguments.level}':<44} {'ours':>9} {'other':>9} {'ratio':>8}", flush=True)
    for name in available(arguments.rows or list(ROWS)):
        measure(name, ROWS[name], arguments.rounds or (1 if arguments.quick else 9))


if __name__ == "__main__":
    main()
