"""Pipelines and replicas against ``torch.distributed.pipelining`` and ``DistributedDataParallel``, two gloo processes.

    PYTHONPATH=src python bench/multi_ipu.py            # the table
    PYTHONPATH=src python bench/multi_ipu.py --level interpret
    PYTHONPATH=src python bench/multi_ipu.py --kinds bert --rows 2 4 16    # other sizes of a micro-batch
    PYTHONPATH=src python bench/multi_ipu.py --memory   # only peak memory on 16 virtual IPUs
    PYTHONPATH=src python bench/multi_ipu.py --draw docs/images/pipeline.svg  # the picture in the documentation
    PYTHONPATH=src python bench/multi_ipu.py --quick    # a few steps of tiny models: does everything run?

Every row is one comparison in one run on the same work: the same model, the same global batch, the same optimizer.
Contenders take turns of a few steps, and medians are compared. Ratios above one mean that we are faster. The rows of
products and attention alone say what a contender would reach for which everything else took no time. Nothing else
should run on the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from two_processes import Step, TwoProcesses, answer, gloo, seconds_per_step

if TYPE_CHECKING:
    import poptorch

MICRO_BATCHES = 8
STEPS = 4
"""In one turn."""

Turn = Callable[[int], float]
"""Runs so many steps; the median of their seconds."""


@dataclass(frozen=True)
class Shape:
    """The size of a model and of one micro-batch."""

    width: int
    layers: int
    rows: int
    sequence: int = 0

    def arguments(self) -> list[str]:
        """For the command line of a worker."""
        return list(map(str, dataclasses.astuple(self)))


SHAPES = {"mlp": Shape(1024, 8, 64), "bert": Shape(256, 4, 8, 64)}
OTHER_ROWS: dict[str, tuple[int, ...]] = {"mlp": (), "bert": (1,)}
"""A micro-batch of a BERT on an IPU has a few samples, often one: then it has the tokens of a single sequence."""
QUICK = {"mlp": Shape(32, 8, 4), "bert": Shape(16, 4, 2, 8)}


class Body(nn.Module):
    """A chain of equal layers: what a pipeline divides evenly."""

    def __init__(self, kind: str, shape: Shape) -> None:
        super().__init__()
        if kind == "mlp":
            layers = [nn.Sequential(nn.Linear(shape.width, shape.width), nn.GELU()) for _ in range(shape.layers)]
        else:
            layers = [
                nn.TransformerEncoderLayer(
                    shape.width, 4, 4 * shape.width, dropout=0.0, activation="gelu", batch_first=True
                )
                for _ in range(shape.layers)
            ]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Annotated(nn.Module):
    """The body and its loss, divided into ``stages`` equal stages."""

    def __init__(self, body: Body, stages: int) -> None:
        super().__init__()
        self.body = body
        self.stages = stages

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        import poptorch

        per_stage = len(self.body.layers) // self.stages
        for index, layer in enumerate(self.body.layers):
            if self.stages > 1 and index % per_stage == 0:
                poptorch.Block.start(f"stage {index // per_stage}", ipu_id=index // per_stage)
            x = layer(x)
        return nn.functional.mse_loss(x, target)


def batch(kind: str, shape: Shape, micro_batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    size = (micro_batches * shape.rows, shape.width)
    if kind == "bert":
        size = (micro_batches * shape.rows, shape.sequence, shape.width)
    return torch.randn(size, generator=generator), torch.randn(size, generator=generator)


# -- ours ----------------------------------------------------------------------------------------------------------


def ours(
    kind: str,
    shape: Shape,
    *,
    stages: int = 1,
    replicas: int = 1,
    micro_batches: int,
    recomputation: int | None = None,
) -> Step:
    executor = make_executor(
        kind, shape, stages=stages, replicas=replicas, micro_batches=micro_batches, recomputation=recomputation
    )
    data = batch(kind, shape, micro_batches)
    return lambda: executor(*data)


def make_executor(
    kind: str, shape: Shape, *, stages: int, replicas: int, micro_batches: int, recomputation: int | None = None
) -> poptorch.PoplarExecutor:
    import poptorch

    torch.manual_seed(0)
    model = Annotated(Body(kind, shape), stages)
    options = poptorch.Options().replicationFactor(replicas).autoRoundNumIPUs(True).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(micro_batches // replicas)
    if recomputation is not None:
        options._Popart.set("autoRecomputation", recomputation)
    return poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=1e-3))


# -- peers, each in two processes of this file ---------------------------------------------------------------------


def pipelining_worker(kind: str, shape: Shape) -> Step:
    """One of two processes of ``torch.distributed.pipelining`` with the 1F1B schedule."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    torch.manual_seed(0)
    body = Body(kind, shape)
    half = len(body.layers) // 2
    part = nn.Sequential(*body.layers[rank * half : (rank + 1) * half])
    x, target = batch(kind, shape, MICRO_BATCHES)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target)
        optimizer.step()
        dist.barrier()

    return step


def ddp_worker(kind: str, shape: Shape) -> Step:
    """One of two processes of ``DistributedDataParallel``; gradients are exchanged once per update."""
    import contextlib

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(Annotated(Body(kind, shape), 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    half = MICRO_BATCHES // 2
    x, target = (t.chunk(2)[dist.get_rank()].chunk(half) for t in batch(kind, shape, MICRO_BATCHES))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for index in range(half):
            with contextlib.nullcontext() if index == half - 1 else model.no_sync():
                (model(x[index], target[index]) / half).backward()
        optimizer.step()

    return step


def library_worker(kind: str, shape: Shape) -> Step:
    """One of two processes that only call the library for the matrix products and the attention of half a step.

    Contenders use the same library for the same products: what they can gain is the rest.
    """
    import torch.distributed as dist

    width, rows = shape.width, shape.rows * max(1, shape.sequence)
    sizes = [(width, width)] if kind == "mlp" else [(width, 3 * width), (width, width), (width, 4 * width)]
    sizes += [(4 * width, width)] * (kind == "bert")
    calls = [call for inputs, outputs in sizes for call in products(rows, inputs, outputs)]
    if kind == "bert":
        calls.append(attention(shape))

    def step() -> None:
        for _ in range(MICRO_BATCHES // 2 * shape.layers):
            for call in calls:
                call()
        dist.barrier()

    return step


def products(rows: int, inputs: int, outputs: int) -> list[Step]:
    """What a linear layer multiplies: forward, and the gradients of its input and its weight."""
    x, y, weight = torch.randn(rows, inputs), torch.randn(rows, outputs), torch.randn(outputs, inputs)
    dx, dy, dw = map(torch.empty_like, (x, y, weight))
    return [
        lambda: torch.mm(x, weight.t(), out=dy),
        lambda: torch.mm(y, weight, out=dx),
        lambda: torch.mm(y.t(), x, out=dw),
    ]


def attention(shape: Shape) -> Step:
    """Forward and backward pass of one layer's attention."""
    query = torch.randn(shape.rows, 4, shape.sequence, shape.width // 4, requires_grad=True)

    def call() -> None:
        nn.functional.scaled_dot_product_attention(query, query, query).backward(query.detach())

    return call


def eager(kind: str, shape: Shape) -> Step:
    """The same work in one process with all cores inside operations."""
    torch.manual_seed(0)
    model = Annotated(Body(kind, shape), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, target = (t.chunk(MICRO_BATCHES) for t in batch(kind, shape, MICRO_BATCHES))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for inputs, wanted in zip(x, target, strict=True):
            (model(inputs, wanted) / MICRO_BATCHES).backward()
        optimizer.step()

    return step


def run_worker(name: str, kind: str, shape: Shape) -> None:
    """A peer's process: as many steps as each line of the input says."""
    torch.set_num_threads(1)
    with gloo():
        answer(lambda: PEERS[name](kind, shape))


PEERS = {"pipelining": pipelining_worker, "ddp": ddp_worker, "library": library_worker}


# -- the table -----------------------------------------------------------------------------------------------------


def row(name: str, mine: float, other: float, wanted: float | None = None) -> None:
    ratio = other / mine
    goal = "" if wanted is None else f"  goal {wanted:.2f}x" + "  (short of the goal)" * (ratio < wanted)
    print(f"{name:<58} {mine * 1e3:>9.2f} {other * 1e3:>9.2f} {ratio:>7.2f}x{goal}", flush=True)


def table(shapes: Sequence[tuple[str, Shape]], rounds: int, level: str) -> None:
    print(f"{f'ms per step, level {level}':<58} {'ours':>9} {'other':>9} {'ratio':>8}")
    for kind, shape in shapes:
        size = shape.arguments()
        peers = {name: TwoProcesses(__file__, "--worker", name, "--kind", kind, "--shape", *size) for name in PEERS}
        try:
            times = take_turns(contenders(kind, shape, peers), rounds)
        finally:
            for peer in peers.values():
                peer.end()
        for name, mine, other, goal in COMPARISONS:
            row(f"{title(kind, shape)}: {name}", times[mine], times[other], goal)
        for name, peer in (("torch pipelining", "pipelining"), ("DDP", "ddp")):
            row(f"{title(kind, shape)}: products and attention alone, {name}", times["library"], times[peer])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MiB")


def title(kind: str, shape: Shape) -> str:
    """The name of a row; micro-batches of another size than usual are named."""
    return kind if shape in (SHAPES[kind], QUICK[kind]) else f"{kind}, {shape.rows} rows"


COMPARISONS = (
    ("2 stages against torch pipelining", "pipeline", "pipelining", 1.5),
    ("2 stages, forward run again, same", "pipeline, again", "pipelining", 1.5),
    ("2 stages against our one IPU", "pipeline", "one", 1.0),
    ("2 stages, forward run again, same", "pipeline, again", "one", 1.0),
    ("2 replicas against DDP", "replicas", "ddp", 1.3),
    ("2 replicas against eager, one process", "replicas", "eager", 1.0),
    ("16 IPUs (4 stages x 4 replicas) against 1", "sixteen", "one, four times", 0.85),
    ("16 IPUs, forward run again, same", "sixteen, again", "one, four times", 0.85),
)
RECOMPUTATIONS = {None: "as the host likes", 3: "forward run again", 0: "nothing run again"}
"""Values of the option ``autoRecomputation``."""


def contenders(kind: str, shape: Shape, peers: Mapping[str, TwoProcesses]) -> dict[str, Turn]:
    """Everybody, ready to run some steps."""
    few, many = MICRO_BATCHES, 4 * MICRO_BATCHES  # 4 stages need 7 micro-batches on each of 4 replicas
    steps = {
        "pipeline": ours(kind, shape, stages=2, micro_batches=few),
        "pipeline, again": ours(kind, shape, stages=2, micro_batches=few, recomputation=3),
        "one": ours(kind, shape, micro_batches=few),
        "replicas": ours(kind, shape, replicas=2, micro_batches=few),
        "eager": eager(kind, shape),
        "sixteen": ours(kind, shape, stages=4, replicas=4, micro_batches=many),
        "sixteen, again": ours(kind, shape, stages=4, replicas=4, micro_batches=many, recomputation=3),
        "one, four times": ours(kind, shape, micro_batches=many),
    }
    return {
        **{name: functools.partial(seconds_per_step, step) for name, step in steps.items()},
        **{name: peer.turn for name, peer in peers.items()},
    }


def take_turns(turns: Mapping[str, Turn], rounds: int) -> dict[str, float]:
    """Medians; a noisy moment of the machine hits everybody."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    for turn in turns.values():
        turn(2)  # compiles
    for _ in range(rounds):
        for name, turn in turns.items():
            times[name].append(turn(STEPS))
    return {name: statistics.median(each) for name, each in times.items()}


def memory_table(shapes: Sequence[tuple[str, Shape]]) -> None:
    """Peak memory of a training step on 16 virtual IPUs, against what lives anyway and what the schedule keeps."""
    head = f"{'MiB, 16 IPUs (4 stages x 4 replicas)':<58} {'peak':>9} {'between':>9} {'beyond':>9} {'schedule':>9}"
    print(f"\n{head} {'ratio':>7}")
    for kind, shape in shapes:
        for mode, described in RECOMPUTATIONS.items():
            command = [sys.executable, __file__, "--worker", "memory", "--kind", kind, "--shape", *shape.arguments()]
            command += [] if mode is None else ["--recomputation", str(mode)]
            run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
            peak, live, needed = map(float, run.stdout.split()[-3:])
            ratio = (peak - live) / needed
            mark = "" if ratio <= 1.2 else "  (short of the goal)"
            name = f"{title(kind, shape)}: {described}"
            print(
                f"{name:<58} {peak:>9.2f} {live:>9.2f} {peak - live:>9.2f} {needed:>9.2f} {ratio:>6.2f}x"
                f"  goal <= 1.20x{mark}",
                flush=True,
            )


def measure_memory(kind: str, shape: Shape, recomputation: int | None) -> None:
    """In a process of its own: the peak of the steps, what lives between them, and what the schedule must keep."""
    from memory import MIB, peak_memory

    from poptorch.runtime.residency import scheduled_activation_bytes

    many = 4 * MICRO_BATCHES
    executor = make_executor(kind, shape, stages=4, replicas=4, micro_batches=many, recomputation=recomputation)
    data = batch(kind, shape, many)
    found = peak_memory(lambda: lambda: executor(*data))
    runner = executor._session.engine.parallel
    print(found["peak"], found["live"], scheduled_activation_bytes(executor.plan, runner.scheduled_tasks()) / MIB)


def draw(path: str, quick: bool) -> None:
    """The schedule of the fastest of some steps of the MLP on four IPUs."""
    shape = (QUICK if quick else SHAPES)["mlp"]
    executor = make_executor("mlp", shape, stages=4, replicas=1, micro_batches=MICRO_BATCHES)
    data = batch("mlp", shape, MICRO_BATCHES)
    fastest = float("inf")
    executor(*data)
    for _ in range(3 if quick else 20):
        start = time.perf_counter()
        executor(*data)
        taken = time.perf_counter() - start
        if taken < fastest:
            fastest = taken
            text = executor.drawSchedule(path)
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny models, few steps: only to see that it runs")
    parser.add_argument("--rounds", type=int, default=None, help="turns of each contender (default: 7)")
    parser.add_argument("--level", choices=("interpret", "native"), default="native", help="the code of our programs")
    parser.add_argument("--kinds", nargs="*", choices=tuple(SHAPES), default=tuple(SHAPES))
    parser.add_argument("--memory", action="store_true", help="only the table of memory")
    parser.add_argument("--draw", metavar="FILE", help="only the schedule of a 4-stage pipeline")
    parser.add_argument("--worker", choices=(*PEERS, "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, nargs="*", help="samples of a micro-batch (default: 64, bert 8 and 1)")
    parser.add_argument("--recomputation", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=tuple(SHAPES), default="mlp", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 7)
    if arguments.worker == "memory":
        measure_memory(arguments.kind, Shape(*arguments.shape), arguments.recomputation)
    elif arguments.worker is not None:
        run_worker(arguments.worker, arguments.kind, Shape(*arguments.shape))
    else:
        os.environ["POPTORCH_CODEGEN"] = arguments.level
        shapes = chosen_shapes(arguments)
        if arguments.draw:
            draw(arguments.draw, arguments.quick)
            return
        if not arguments.memory:
            table(shapes, rounds, arguments.level)
        memory_table(shapes)


def chosen_shapes(arguments: argparse.Namespace) -> list[tuple[str, Shape]]:
    shapes = QUICK if arguments.quick else SHAPES
    return [
        (kind, dataclasses.replace(shapes[kind], rows=count))
        for kind in arguments.kinds
        for count in arguments.rows or (shapes[kind].rows, *OTHER_ROWS[kind] * (not arguments.quick))
    ]


if __name__ == "__main__":
    main()
