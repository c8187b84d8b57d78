#!/usr/bin/env python3
"""Trains cases of ``distributed_cases.py`` as one process of a launcher: ``launched.py <folder> <case>...``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import poptorch
from distributed_cases import CASES
from poptorch.host import build

if __name__ == "__main__":
    build.EXCHANGE_BYTES = 1  # also of small models, gradients leave one by one
    here = poptorch.Options().Distributed
    folder, *names = sys.argv[1:]
    found = {name: CASES[name].train(here.processId, here.numProcesses) for name in names}
    torch.save(found, Path(folder) / f"{here.processId}.pt")
