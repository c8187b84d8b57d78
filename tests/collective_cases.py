"""Models whose replicas exchange values, with the same results however the replicas are spread over processes.

``python collective_cases.py <process> <processes> <folder> <case>...`` runs the cases one after the other, as one
process of a job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import poptorch

FEATURES, ROWS = 3, 2


def call(name: str, x: torch.Tensor, template: Any = None, **attributes: Any) -> torch.Tensor:
    templates = [x if template is None else template]
    (y,) = poptorch.custom_op([x], f"Replicated{name}", "ai.graphcore", 1, templates, attributes or None)
    return y


def mixed(h: torch.Tensor) -> torch.Tensor:
    """All kinds, in groups of two, of four, and of every second replica."""
    h = torch.sin(call("AllReduce", h, __collectiveReplicaGrouping=[4, 1, 2]))
    h = call("AllGather", h, torch.empty(4, *h.shape)).sum(0) + h
    part = call("ReduceScatter", h.reshape(-1), __collectiveOperator=1, __collectiveCommGroup=[2, 2])
    return call("AllGather", part, __collectiveCommGroup=[2, 2]).reshape(h.shape)


def of_the_user(h: torch.Tensor) -> torch.Tensor:
    (y,) = poptorch.custom_op([h], "Neighbour", "tests", 1, [h])
    return y


def _rotated(x: torch.Tensor, *, replicas: Any) -> torch.Tensor:
    return replicas.all_gather(x)[(replicas.number + 1) % replicas.count]


def _rotated_back(gradients: Any, inputs: Any, outputs: Any, *, replicas: Any) -> Any:
    return [replicas.all_gather(gradients[0])[replicas.number - 1]]


poptorch.registerCustomOp("Neighbour", "tests", 1, _rotated, _rotated_back, replicas=True)


def _refuses(x: torch.Tensor, *, replicas: Any) -> torch.Tensor:
    if replicas.number == 3:
        raise ValueError("not this one")
    return sum(replicas.all_gather(x))


poptorch.registerCustomOp("Refuses", "tests", 1, _refuses, replicas=True)


def fails(h: torch.Tensor) -> torch.Tensor:
    (y,) = poptorch.custom_op([h.detach()], "Refuses", "tests", 1, [h])
    return y


class Net(nn.Module):
    def __init__(self, exchange: Callable[[torch.Tensor], torch.Tensor], last_ipu: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.exchange, self.last_ipu = exchange, last_ipu

    def forward(self, x: torch.Tensor) -> Any:
        with poptorch.Block("first", ipu_id=0):
            h = self.exchange(torch.tanh(self.first(x)))
        with poptorch.Block("second", ipu_id=self.last_ipu):
            out = self.second(h + call("AllReduce", h))
            loss = poptorch.identity_loss((out * out * x.sum()).sum(), "none")
        return (out, loss) if self.training else out


@dataclass(frozen=True)
class Case:
    """A model with four replicas in all processes, some of its calls, and what comes of them."""

    exchange: Callable[[torch.Tensor], torch.Tensor] = mixed
    training: bool = True
    half: bool = False
    last_ipu: int = 0
    accumulation: int = 1
    iterations: int = 1
    replicas: int = 4
    per_replica: int = 1
    """Processes that share each replica."""

    def run(self, process: int = 0, processes: int = 1) -> dict[str, torch.Tensor]:
        """Results by name; ``outputs`` has the rows of the replicas of this process."""
        parts = max(1, processes // self.per_replica)
        part, local = process // self.per_replica if processes > 1 else 0, self.replicas // parts
        model = Net(self.exchange, self.last_ipu)
        if self.half:
            model.half()
        options = poptorch.Options().replicationFactor(local).deviceIterations(self.iterations)
        options.outputMode(poptorch.OutputMode.All)
        options.Distributed.configureProcessId(process, processes)
        if self.per_replica > 1 and processes > 1:
            options.Distributed.processesPerReplica(self.per_replica)
        steps = self.iterations
        if self.training:
            options.Training.gradientAccumulation(self.accumulation)
            steps *= self.accumulation
            optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
            executor = poptorch.trainingModel(model, options, optimizer)
        else:
            executor = poptorch.inferenceModel(model.eval(), options)
        outputs = []
        for number in range(3):
            generator = torch.Generator().manual_seed(number)
            whole = torch.randn(steps, self.replicas, ROWS, FEATURES, generator=generator)
            own = whole[:, part * local : (part + 1) * local].reshape(-1, FEATURES)
            result = executor(own.half() if self.half else own)
            outputs.append((result[0] if self.training else result).float().reshape(steps, local, ROWS, FEATURES))
        found = {name: p.detach().clone() for name, p in model.named_parameters()}
        executor.destroy()
        return {**found, "outputs": torch.cat(outputs)}


CASES = {
    "training": Case(),
    "halves": Case(half=True),
    "inference": Case(training=False, iterations=3),
    "pipelined": Case(last_ipu=1, accumulation=4, iterations=2),
    "of the user": Case(of_the_user, accumulation=2),
}
SHARED = {"shared": Case(of_the_user, last_ipu=1, accumulation=3, replicas=2, per_replica=2)}
FAILING = {"failing": Case(fails)}


def main() -> None:
    process, processes, folder, *cases = sys.argv[1:]
    for name in cases:
        case = {**CASES, **SHARED, **FAILING}[name]
        torch.save(case.run(int(process), int(processes)), f"{folder}/{name}-{process}.pt")


if __name__ == "__main__":
    main()
