"""Batch normalisation left in training mode inside an inference model: statistics are read before they are written."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums


class Norms(nn.Module):
    """Returns the statistics after one or two uses of the same layer."""

    def __init__(self, uses: int) -> None:
        super().__init__()
        self.norm, self.uses = nn.BatchNorm1d(2), uses

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for _ in range(self.uses):
            x = self.norm(x) + 3
        return x, self.norm.running_mean, self.norm.running_var * 2


@pytest.mark.parametrize("uses", [1, 2])
def test_inference_returns_what_was_there_before_the_call(uses: int) -> None:
    model = Norms(uses)
    reference = copy.deepcopy(model)
    executor = poptorch.inferenceModel(model)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        x = torch.randn(8, 2, generator=generator) + 3
        mean, var = reference.norm.running_mean.clone(), reference.norm.running_var.clone()
        expected = reference(x)[0].detach()
        y, *statistics = executor(x)
        assert_close_sums(y, expected, terms=8, steps=2)
        assert_close_sums(statistics, [mean, var * 2], terms=8, steps=2)
    executor.copyWeightsToHost()
    assert_close_sums(executor.model.norm.running_mean, reference.norm.running_mean, terms=8, steps=3)


def test_evaluation_mode_changes_nothing() -> None:
    executor = poptorch.inferenceModel(Norms(1).eval())
    for _ in range(2):
        assert executor(torch.ones(4, 2))[1].tolist() == [0, 0]


def test_training_returns_the_new_ones() -> None:
    class Trained(Norms):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y, mean, _ = super().forward(x)
            return poptorch.identity_loss(y, "mean"), mean

    executor = poptorch.trainingModel(Trained(1))
    assert executor(torch.tensor([[0.0, 4.0], [2.0, 4.0]]))[1].tolist() == pytest.approx([0.1, 0.4])
