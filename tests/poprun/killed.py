"""A program whose second instance is killed in the middle of a training."""

from __future__ import annotations

import os
import signal

import torch
from training import Model

import popdist
import popdist.poptorch
import poptorch

if __name__ == "__main__":
    popdist.init()
    model = Model()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, popdist.poptorch.Options(), optimizer)
    for step in range(1000):
        if step == 3 and popdist.getInstanceIndex() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        training(torch.ones(2, 4), torch.ones(2, 3))
