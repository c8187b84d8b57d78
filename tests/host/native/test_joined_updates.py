"""Native steps with the update in the backward pass: a gradient reads the weights of before, not the updated ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch


class Scales(nn.Module):
    """Parameters whose gradients are computed from other parameters, element by element."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.x = nn.Parameter(torch.randn(2, 2, 3, generator=generator))
        self.offset = nn.Parameter(torch.randn(3, generator=generator))
        self.scale = nn.Parameter(torch.randn(3, generator=generator))
        self.other = nn.Parameter(torch.rand(6, generator=generator))

    def forward(self, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.pad((self.x * 0.5 - self.offset) * self.scale, (0, 1)) * factor
        z = torch.where(self.other > 0.4, self.other - 0.1, torch.zeros(()))
        weighted = (y * torch.linspace(0.5, 1.5, 16).reshape(2, 2, 4)).sum()
        sums = sum(parameter.sum() for parameter in self.parameters())
        return y, poptorch.identity_loss(weighted + z.sum() + sums, reduction="none")


class Product(nn.Module):
    """One weight that is the product of three."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.first, self.second, self.third = (
            nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (3,), (4, 1))
        )

    def forward(self, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self.first * self.second * self.third * factor
        return weight, poptorch.identity_loss(weight.square().sum(), reduction="none")


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, eps=1e-3),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, eps=1e-2),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [Scales, Product])
def test_gradients_read_the_weights_of_before(
    kind: type[nn.Module], optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    eager, model = kind(), kind()
    steps = OPTIMIZERS[optimizer](eager.parameters())
    training = poptorch.trainingModel(model, None, OPTIMIZERS[optimizer](model.parameters()))
    for _ in range(3):
        steps.zero_grad()
        eager(torch.ones(1))[1].backward()
        steps.step()
        training(torch.ones(1))
    training.copyWeightsToHost()
    for (name, expected), parameter in zip(eager.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), expected.detach(), rtol=2e-5, atol=1e-5, msg=name)
    training.destroy()
