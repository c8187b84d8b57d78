"""Automatic loss scaling on every architecture of the zoo that makes sense in float16."""

from __future__ import annotations

import pytest
import torch
from zoo_all import ARCHITECTURES
from zoo_architecture import Tensors, WithLoss

import poptorch
from closeness import assert_close_sums

ROWS = 4

IN_HALF = [name for name, architecture in ARCHITECTURES.items() if architecture.half_tolerance is not None]


def _half(tensors: Tensors) -> Tensors:
    return tuple(t.half() if t.dtype is torch.float32 else t for t in tensors)


def _executor(model: WithLoss, automatic: bool) -> tuple[poptorch.PoplarExecutor, poptorch.optim.SGD]:
    options = poptorch.Options()
    options.Training.gradientAccumulation(2).setAutomaticLossScaling(automatic)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01, loss_scaling=1.0)
    return poptorch.trainingModel(model, options, optimizer), optimizer


def _factor(optimizer: poptorch.optim.SGD) -> float:
    return float(optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"])


@pytest.mark.parametrize("name", IN_HALF)
def test_scaling_changes_nothing_but_the_scale(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = architecture.trainable().half()
    twin = model.twin()
    inputs, targets = architecture.batch(ROWS)
    batch = (*_half(inputs), *_half(targets))
    scaled, optimizer = _executor(model, automatic=True)
    _, loss = scaled(*batch)
    _, expected = _executor(twin, automatic=False)[0](*batch)
    assert torch.equal(loss, expected)
    assert _factor(optimizer) in (0.5, 2.0)
    weights = [{name: w.float() for name, w in m.state_dict().items()} for m in (model, twin)]
    assert_close_sums(*weights, terms=ROWS, dtype=torch.float16)
    scaled(*batch)
    assert _factor(optimizer) in (0.25, 1.0, 4.0)
