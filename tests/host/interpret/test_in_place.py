"""Writing results over operands that nobody reads any more."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums


def trained(model, *inputs, steps=3):
    """The model after some steps of ours and of eager, and the code of ours."""
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    executor = poptorch.trainingModel(
        model, poptorch.Options().showCompilationProgressBar(False), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    for _ in range(steps):
        optimizer.zero_grad()
        loss = reference(*inputs)
        loss.backward()
        optimizer.step()
        assert_close_sums(executor(*inputs), loss, terms=288, steps=steps)
    assert_close_sums(model.state_dict(), reference.state_dict(), terms=288, steps=steps)
    return executor.executable.code.micro_batch.source


class Block(nn.Module):
    """Convolution, norm, activation and a shortcut around them."""

    def __init__(self, activation) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        z = self.activation(y) + x
        return nn.functional.mse_loss(z, torch.zeros_like(z))


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.LeakyReLU(), nn.Hardswish()], ids=str
)
def test_activations_give_the_same_numbers(activation):
    torch.manual_seed(0)
    trained(Block(activation), torch.randn(2, 4, 6, 6))


def test_a_dying_operand_is_reused():
    torch.manual_seed(0)
    source = trained(Block(nn.ReLU()), torch.randn(2, 4, 6, 6))
    assert "op_relu_default_in_place" in source
    assert "op_threshold_backward_default_in_place" in source


class Kept(nn.Module):
    """Values that are read again, returned, or looked at through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.fc(x)
        view = y.view(-1)
        positive = torch.relu(y)  # y is needed below
        doubled = positive + positive
        row = doubled[0]
        shifted = doubled + 1  # the row looks at doubled
        return y * 2, view + 1, positive, shifted, row * 3


def test_what_is_read_again_is_kept():
    torch.manual_seed(0)
    model = Kept()
    x = torch.randn(3, 6)
    got = poptorch.inferenceModel(model, poptorch.Options().showCompilationProgressBar(False))(x)
    assert_close_sums(got, model(x), terms=6)


def test_inputs_weights_and_constants_are_never_written():
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((3,), -1.0))
            self.c = torch.tensor([-2.0, 1.0, -3.0])

        def forward(self, x):
            return torch.relu(x), torch.relu(self.w), torch.relu(self.c) + x, x.view(3).mul(2)

    x = torch.tensor([-1.0, 2.0, -3.0])
    executor = poptorch.inferenceModel(Plain(), poptorch.Options().showCompilationProgressBar(False))
    first = [t.clone() for t in executor(x)]
    assert x.tolist() == [-1.0, 2.0, -3.0]
    for one, other in zip(first, executor(x), strict=True):
        assert torch.equal(one, other)


def test_broadcast_and_types_are_not_written_over():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            small = x.sum(0, keepdim=True) * self.w  # (1, 4)
            return small + x, (x * 2).exp() + small, torch.relu(small.expand(3, 4))

    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(3, 4)
    got = poptorch.inferenceModel(model, poptorch.Options().showCompilationProgressBar(False))(x)
    assert_close_sums(got, model(x), terms=6)
