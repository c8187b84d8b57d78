"""A training that goes on after failures: ``torchrun ... resumable.py <folder> <steps> <fatal step of process 1>``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import poptorch
from checkpoint_cases import Stages, data
from distributed_cases import adamw
from poptorch.integrations.resuming import Run, run_resumable

REPLICAS = 4


def train(run: Run) -> None:
    folder, steps, fatal = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    options = poptorch.Options().randomSeed(11).broadcastBuffers(False)
    processes, process = options.Distributed.numProcesses, options.Distributed.processId
    options.replicationFactor(REPLICAS // processes)
    options.Training.gradientAccumulation(3)
    model = Stages(False)
    executor = poptorch.trainingModel(model, options, adamw(model))
    executor.compile(*data(REPLICAS, process, processes, 0))
    begin = run.restore(executor).get("step", 0)
    os.write(1, f"process {process} of {processes} begins at step {begin}\n".encode())  # as a whole
    for step in range(begin, steps):
        if step == fatal and process == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os._exit(7)
        executor(*data(REPLICAS, process, processes, step))
        if step % 2:
            run.save(executor, {"step": step + 1})
    torch.save(dict(model.state_dict()), folder / f"{process}.pt")


if __name__ == "__main__":
    run_resumable(train, Path(sys.argv[1]) / "checkpoints")
