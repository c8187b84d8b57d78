"""Small trainings that give the same weights however their replicas are spread over processes.

A test computes one with all replicas in its own process, and starts this file as a program for the others:
``python distributed_cases.py <process> <processes> <folder> <bytes> <case>...`` trains the cases one after the other,
and writes what it got to ``<folder>/<case>-<process>.pt``. Gradients of so many bytes leave together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import poptorch
from poptorch.host import build

STEPS = 3
ROWS = 4
FEATURES = 6


class Net(nn.Module):
    """Two layers, and dropout between them if it is wanted."""

    def __init__(self, dropout: float = 0.0, pipelined: bool = False, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(FEATURES, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(8, 2)
        if pipelined:
            poptorch.BeginBlock(self.second, ipu_id=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = self.second(self.dropout(self.norm(torch.tanh(self.first(x)))))
        loss = poptorch.identity_loss((out - y).pow(2).mean(), reduction="none")
        return out, loss


class Own(nn.Module):
    """A weight of its own for each group of replicas."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.shared = nn.Parameter(torch.randn(FEATURES, 2))
        self.own = nn.Parameter(torch.randn(groups, FEATURES, 2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = x @ (self.shared + self.own)
        return out, poptorch.identity_loss((out - y).pow(2).mean(), reduction="none")


class Scaled(nn.Module):
    """Tensors of which most processes own no element: of one element each, one of them without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.fc = nn.Linear(FEATURES, 2)
        self.gain = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = self.fc(x) * self.gain + self.shift
        return out, poptorch.identity_loss((out - y).pow(2).mean(), reduction="none")


class Spectral(nn.Module):
    """Complex weights between two Fourier transforms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.modes = nn.Parameter(torch.randn(FEATURES // 2 + 1, dtype=torch.complex64))
        self.fc = nn.Linear(FEATURES, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = self.fc(torch.fft.irfft(torch.fft.rfft(x) * self.modes.conj(), n=FEATURES))
        return out, poptorch.identity_loss((out - y).pow(2).mean(), reduction="none")


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=False)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.AdamW(model.parameters(), lr=0.01)


def lamb(model: nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.LAMB(model.parameters(), lr=0.01)


def nothing(options: poptorch.Options) -> None:
    """No further options."""


def running_mean(options: poptorch.Options) -> None:
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.Running)


def automatic_loss_scaling(options: poptorch.Options) -> None:
    options.Training.setAutomaticLossScaling(True)


def sharded_state(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    options.TensorLocations.setOptimizerLocation(location.minElementsForReplicatedTensorSharding(4))


def everything_sharded(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    options.TensorLocations.setOptimizerLocation(location.minElementsForReplicatedTensorSharding(1))


def sharded_accumulators(options: poptorch.Options) -> None:
    sharded_state(options)
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    options.TensorLocations.setAccumulatorLocation(location.minElementsForReplicatedTensorSharding(4))


def sharded_and_running_mean(options: poptorch.Options) -> None:
    sharded_state(options)
    running_mean(options)


def own_buffers(options: poptorch.Options) -> None:
    options.broadcastBuffers(False)


@dataclass(frozen=True)
class Case:
    """One training with a number of replicas over all processes."""

    replicas: int = 2
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    accumulation: int = 1
    iterations: int = 1
    half: bool = False
    model: dict[str, Any] = field(default_factory=dict)
    options: Callable[[poptorch.Options], None] = nothing
    make: Callable[..., nn.Module] = Net
    grouping: poptorch.CommGroupType = poptorch.CommGroupType.Consecutive

    def data(self, process: int, processes: int, step: int) -> list[torch.Tensor]:
        """What the replicas of one process get in one step."""
        local = self.replicas // processes
        generator = torch.Generator().manual_seed(step)
        result = []
        for features in (FEATURES, 2):
            whole = torch.randn(self.iterations, self.accumulation, self.replicas, ROWS, features, generator=generator)
            own = whole[:, :, process * local : (process + 1) * local].reshape(-1, features)
            result.append(own.half() if self.half else own)
        return result

    def train(self, process: int = 0, processes: int = 1) -> dict[str, torch.Tensor]:
        """The weights after some steps, and the state of the optimizer."""
        model = self.make(**self.model)
        if self.half:
            model.half()
        options = poptorch.Options().replicationFactor(self.replicas // processes).randomSeed(11)
        options.deviceIterations(self.iterations)
        options.Training.gradientAccumulation(self.accumulation)
        options.Distributed.configureProcessId(process, processes)
        self.options(options)
        optimizer = self.optimizer(model)
        executor = poptorch.trainingModel(model, options, optimizer)
        if self.make is Own:
            executor.own.replicaGrouping(self.grouping, 2, poptorch.VariableRetrievalMode.OnePerGroup)
        outputs = [executor(*self.data(process, processes, step))[0] for step in range(STEPS)]
        found = {n: torch.view_as_real(p) if p.is_complex() else p for n, p in model.named_parameters()}
        found = {name: p.detach().clone() for name, p in found.items()}
        state = optimizer.state_dict()
        found |= {f"state/{n}": t for n, t in state.get("ipu_state", {}).items() if isinstance(t, torch.Tensor)}
        local = self.iterations * self.accumulation if options.output_mode == poptorch.OutputMode.All else 1
        found["outputs"] = outputs[-1].float().reshape(local, -1, ROWS, 2)
        kept = executor.session.engine.optimizer_state
        found["bytes of state"] = torch.tensor(sum(t.nbytes for group in kept for ts in group.values() for t in ts))
        executor.destroy()
        return found


CASES = {
    "sgd": Case(),
    "adamw": Case(optimizer=adamw),
    "lamb": Case(optimizer=lamb),
    "accumulation": Case(accumulation=3),
    "iterations": Case(iterations=2, accumulation=2, optimizer=adamw),
    "half": Case(half=True),
    "loss scaling": Case(half=True, options=automatic_loss_scaling, accumulation=2),
    "running mean": Case(accumulation=2, options=running_mean),
    "two replicas each": Case(replicas=4, optimizer=adamw),
    "two replicas each, sgd": Case(replicas=4),
    "two replicas each, lamb": Case(replicas=4, optimizer=lamb),
    "two replicas each, all": Case(replicas=4, half=True, options=automatic_loss_scaling, accumulation=2),
    "pipelined": Case(accumulation=4, model={"pipelined": True}),
    "pipelined replicas": Case(replicas=4, accumulation=4, model={"pipelined": True}, optimizer=adamw),
    "own buffers": Case(options=own_buffers, model={"norm": True}),
    "running statistics": Case(replicas=4, accumulation=2, model={"norm": True}),
    "dropout": Case(replicas=4, model={"dropout": 0.5}),
    "sharded": Case(options=sharded_state, optimizer=adamw, replicas=4),
    "sharded, of one element": Case(make=Scaled, optimizer=adamw, options=everything_sharded, replicas=4),
    "sharded with running mean": Case(options=sharded_and_running_mean, accumulation=2),
    "sharded accumulators": Case(options=sharded_accumulators, optimizer=adamw, accumulation=3),
    "complex": Case(make=Spectral, accumulation=2),
    "sharded, complex": Case(make=Spectral, optimizer=adamw, options=sharded_state),
    "groups": Case(replicas=4, make=Own, model={"groups": 2}),
    "groups across processes": Case(
        replicas=4, make=Own, model={"groups": 2}, optimizer=lamb, grouping=poptorch.CommGroupType.Orthogonal
    ),
    "groups and running mean": Case(
        replicas=4,
        accumulation=2,
        make=Own,
        model={"groups": 2},
        options=running_mean,
        grouping=poptorch.CommGroupType.Orthogonal,
    ),
}


def main() -> None:
    process, processes, folder, size, *cases = sys.argv[1:]
    build.EXCHANGE_BYTES = int(size)
    for name in cases:
        torch.save(CASES[name].train(int(process), int(processes)), f"{folder}/{name}-{process}.pt")


if __name__ == "__main__":
    main()
