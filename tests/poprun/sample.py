#!/usr/bin/env python3
"""A program in the style of the user guide: it gets its number and the count of processes from Open MPI's variables.

``sample.py <folder>`` writes what it got to ``<folder>/<process>.pt``. Without these variables it asks the options.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from training import REPLICAS, train

import poptorch


def process(process_id: int = 0, num_processes: int = 1) -> None:
    options = poptorch.Options()
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        options.Distributed.configureProcessId(process_id, num_processes)
    else:
        process_id, num_processes = options.Distributed.processId, options.Distributed.numProcesses
    options.replicationFactor(REPLICAS // num_processes)
    trained = train(options, process_id, num_processes)
    found = {
        "process": (process_id, num_processes),
        "devices": [poptorch.ipuHardwareIsAvailable(size) for size in (1, 2, 4)],
        "weights": {name: value.clone() for name, value in trained.state_dict().items()},
    }
    torch.save(found, Path(sys.argv[1]) / f"{process_id}.pt")


if __name__ == "__main__":
    process(
        process_id=int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)),
        num_processes=int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)),
    )
