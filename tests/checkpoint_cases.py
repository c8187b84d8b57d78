"""Training that goes on from a checkpoint, in a job of any number of processes.

``python checkpoint_cases.py <process> <processes> <case> <folder> <first step> <last step>`` loads the checkpoint of
the first step, if that is not 0, and writes one after the last step, and what it has then, to the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

import poptorch
from distributed_cases import FEATURES, ROWS, adamw, everything_sharded
from poptorch.distributed.exchange import ProcessExchange
from poptorch.integrations.sharded_checkpoint import load_sharded, save_sharded


class Stages(nn.Module):
    """Two stages with dropout, a statistic, and tensors of one element."""

    def __init__(self, pipelined: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(FEATURES, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 2)
        self.gain = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.pipelined = pipelined

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        x = nn.functional.dropout(self.norm(torch.tanh(self.first(x))), 0.3)
        if self.pipelined:
            poptorch.Block.useAutoId()
            with poptorch.Block("second", ipu_id=1):
                return self.head(x, y)
        return self.head(x, y)

    def head(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = self.second(x) * self.gain + self.shift
        return out, poptorch.identity_loss((out - y).pow(2).mean(), reduction="none")


REPLICAS = {"sharded": 6, "whole": 6, "stages": 2, "sharded stages": 2}
ACCUMULATION = 3


def data(replicas: int, part: int, parts: int, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    local = replicas // parts
    return [
        torch.randn(ACCUMULATION, replicas, ROWS, n, generator=generator)[:, part * local : (part + 1) * local].flatten(
            0, 2
        )
        for n in (FEATURES, 2)
    ]


def rate(step: int) -> float:
    return 0.01 / (step + 1)


def nobody_gathers(*arguments: Any) -> NoReturn:
    raise AssertionError("a checkpoint gathers nothing")


def main() -> None:
    process, processes, case, place, first, last = sys.argv[1:]
    number, count, folder = int(process), int(processes), Path(place)
    stages, replicas = "stages" in case, REPLICAS[case]
    together = min(count, 2) if stages else 1
    parts = count // together
    options = poptorch.Options().replicationFactor(replicas // parts).randomSeed(11).autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.broadcastBuffers(False)
    options.Distributed.configureProcessId(number, count).processesPerReplica(together)
    if "sharded" in case:
        everything_sharded(options)
    model = Stages(stages)
    if int(first):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # all comes from the checkpoint
    optimizer = adamw(model)
    training = poptorch.trainingModel(model, options, optimizer)
    arguments = [data(replicas, number // together, parts, step) for step in range(int(last))]
    training.compile(*arguments[0])
    gather, fetch = ProcessExchange.gather, type(training).copyWeightsToHost
    ProcessExchange.gather = nobody_gathers  # type: ignore[method-assign, assignment]
    type(training).copyWeightsToHost = nobody_gathers  # type: ignore[method-assign, assignment]
    if int(first):
        said = load_sharded(folder / first, training)
        assert said == {"step": int(first)}, said
        assert optimizer.param_groups[0]["lr"] == rate(int(first))
    ProcessExchange.gather = gather  # type: ignore[method-assign]
    loaded = optimizer.state_dict()["ipu_state"]
    for step in range(int(first), int(last)):
        training(*arguments[step])
        optimizer.param_groups[0]["lr"] = rate(step + 1)
        training.setOptimizer(optimizer)
    ProcessExchange.gather = nobody_gathers  # type: ignore[method-assign, assignment]
    save_sharded(folder / last, training, {"step": int(last)})
    ProcessExchange.gather = gather  # type: ignore[method-assign]
    type(training).copyWeightsToHost = fetch  # type: ignore[method-assign]
    found = {"loaded": loaded, "state": optimizer.state_dict()["ipu_state"], "model": dict(model.state_dict())}
    torch.save(found, folder / f"{last}-{process}.pt")


if __name__ == "__main__":
    main()
