"""Small pipelines that give the same bits however their stages are spread over processes.

A test computes one with all stages in its own process, and starts this file as a program for the others:
``python pipeline_cases.py <process> <processes> <folder> <case>=<together>...`` runs the cases one after the other,
with so many processes for each replica, and writes what it got to ``<folder>/<case>-<process>.pt``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import poptorch
from distributed_cases import adamw, lamb, nothing, sgd

STEPS = 5
ROWS = 4
WIDTH = 6

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


class Net(nn.Module):
    """Layers, each on an IPU of its own."""

    def __init__(
        self, stages: int = 2, dropout: float = 0.0, norm: bool = False, skip: bool = False, ipus: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(stages))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) if norm else nn.Identity() for _ in range(stages))
        self.dropout = nn.Dropout(dropout)
        self.skip = skip
        self.ipus = ipus or tuple(range(stages))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        first = x
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            with poptorch.Block(f"stage {number}", ipu_id=self.ipus[number]):
                x = self.dropout(torch.tanh(norm(layer(x))))
                if self.skip and number == len(self.layers) - 1:
                    x = x + first
                if number == len(self.layers) - 1 and y is not None:
                    return x, poptorch.identity_loss((x - y).pow(2).mean(), reduction="none")
        return x


class Tied(nn.Module):
    """The first and the last stage use one weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        with poptorch.Block("first", ipu_id=0):
            x = torch.tanh(x @ self.table)
        with poptorch.Block("second", ipu_id=1):
            x = self.inner(x) @ self.table.t()
            return x, poptorch.identity_loss((x - y).pow(2).mean(), reduction="none")


def everything(options: poptorch.Options) -> None:
    options.outputMode(poptorch.OutputMode.All)


def total(options: poptorch.Options) -> None:
    options.outputMode(poptorch.OutputMode.Sum)


def every_second(options: poptorch.Options) -> None:
    options.outputMode(poptorch.OutputMode.EveryN, 2)


def recompute(options: poptorch.Options) -> None:
    options._Popart.set("autoRecomputation", 3)


def keep(options: poptorch.Options) -> None:
    options._Popart.set("autoRecomputation", 0)


def sharded(options: poptorch.Options) -> None:
    options.setExecutionStrategy(poptorch.ShardedExecution())


def increment(options: poptorch.Options) -> None:
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))


def loss_scaling(options: poptorch.Options) -> None:
    options.Training.setAutomaticLossScaling(True)


def anchored(options: poptorch.Options) -> None:
    options.anchorTensor("updated", "UpdatedVar___layers.0.weight")
    options.anchorTensor("momentum", "Accl1___layers.1.weight")
    options.anchorTensor("rate", "scaledLearningRate2___specific___layers.1.weight")
    options.anchorTensor("inside", "Tanh:0")
    options.anchorTensor("gradient", "Gradient___layers.0.weight", poptorch.OutputMode.All)


def sharded_state(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    options.TensorLocations.setOptimizerLocation(location.minElementsForReplicatedTensorSharding(4))


@dataclass(frozen=True)
class Case:
    """One training, or inference, whose stages are in one process or in several."""

    optimizer: Optimizer | None = sgd
    accumulation: int = 4
    iterations: int = 1
    replicas: int = 1
    """Of all processes together."""

    half: bool = False
    make: Callable[..., nn.Module] = Net
    model: dict[str, Any] = field(default_factory=dict)
    options: Callable[[poptorch.Options], None] = nothing

    def data(self, part: int, parts: int, step: int) -> list[torch.Tensor]:
        """What the replicas of one part of the data get in one step."""
        local = self.replicas // parts
        generator = torch.Generator().manual_seed(step)
        shape = self.iterations, self.accumulation, self.replicas, ROWS, WIDTH
        found = [torch.randn(shape, generator=generator) for _ in range(2 if self.optimizer is not None else 1)]
        own = [f[:, :, part * local : (part + 1) * local].reshape(-1, WIDTH) for f in found]
        return [o.half() if self.half else o for o in own]

    def run(self, process: int = 0, processes: int = 1, together: int = 1) -> dict[str, Any]:
        """What some steps return, and the weights after them; ``together`` processes share each replica."""
        model = self.make(**self.model)
        if self.half:
            model.half()
        parts = processes // together
        options = poptorch.Options().replicationFactor(self.replicas // parts).randomSeed(11)
        options.deviceIterations(self.iterations)
        options.Training.gradientAccumulation(self.accumulation)
        options.Distributed.configureProcessId(process, processes)
        if together > 1:
            options.Distributed.processesPerReplica(together)
        self.options(options)
        if self.optimizer is None:
            executor = poptorch.inferenceModel(model, options)
        else:
            executor = poptorch.trainingModel(model, options, self.optimizer(model))
        anchors = list(options.anchored_tensors)
        returned, seen = [], []
        for step in range(STEPS):
            returned.append(executor(*self.data(process // together, parts, step)))
            seen.append([executor.getAnchoredTensor(name) for name in anchors])
        latency = executor.getLatency()
        engine = executor.session.engine
        found = {
            "returned": returned,
            "anchors": seen,
            "weights": {name: value.detach().clone() for name, value in model.state_dict().items()},
            "bytes of weights": sum(t.nbytes for t in engine.parameters().values()),
            "bytes of state": sum(t.nbytes for group in engine.optimizer_state for ts in group.values() for t in ts),
            "latency": latency is not None,
        }
        executor.destroy()
        return found


CASES = {
    "sgd": Case(),
    "adamw": Case(optimizer=adamw),
    "every output": Case(iterations=2, options=everything, optimizer=lamb),
    "sums": Case(iterations=2, options=total),
    "every second": Case(iterations=4, options=every_second, optimizer=adamw),
    "recomputation": Case(options=recompute, optimizer=adamw, model={"dropout": 0.3}),
    "no recomputation": Case(options=keep, model={"dropout": 0.5}),
    "norm": Case(model={"norm": True}),
    "skip": Case(model={"skip": True}, optimizer=adamw),
    "four stages": Case(model={"stages": 4, "skip": True}, accumulation=8, optimizer=adamw),
    "back and forth": Case(model={"stages": 4, "ipus": (0, 1, 0, 1)}, accumulation=8, options=increment),
    "tied": Case(make=Tied, optimizer=adamw),
    "sharded": Case(options=sharded, accumulation=2),
    "half": Case(half=True, options=loss_scaling),
    "anchors": Case(options=anchored, iterations=2),
    "replicas": Case(replicas=2, optimizer=adamw, model={"dropout": 0.5}),
    "sharded state": Case(replicas=2, optimizer=adamw, options=sharded_state),
    "inference": Case(optimizer=None, accumulation=1, iterations=4),
    "inference of four stages": Case(
        optimizer=None, accumulation=1, iterations=8, replicas=2, model={"stages": 4, "dropout": 0.5}, options=nothing
    ),
}


def main() -> None:
    process, processes, folder, *cases = sys.argv[1:]
    for name, together in (case.split("=") for case in cases):
        found = CASES[name].run(int(process), int(processes), int(together))
        torch.save(found, f"{folder}/{name}-{process}.pt")


if __name__ == "__main__":
    main()
