"""Products of groups of rows, as mixtures of experts use them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums

ROWS, IN, OUT, EXPERTS = 6, 8, 4, 3


class Experts(nn.Module):
    """Rows sorted by expert, and one matrix for each expert."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(EXPERTS, IN, OUT) / 3)

    def product(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x, self.weight, offs=ends)

    def forward(self, x: torch.Tensor, ends: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.product(x, ends.reshape(-1).to(torch.int32))
        return y, F.mse_loss(y, target)


class ByLoop(Experts):
    """The same in simple operations."""

    def product(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        bounds = [0, *ends.tolist()]
        return torch.cat([x[bounds[i] : bounds[i + 1]] @ self.weight[i] for i in range(EXPERTS)])


def _data(rounds: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rounds * ROWS, IN, generator=generator)
    ends = torch.tensor([[2, 3, 6], [0, 5, 6], [6, 6, 6]])[:rounds]
    return x, ends, torch.randn(rounds * ROWS, OUT, generator=generator)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("half", [False, True])
def test_experts_train_as_in_a_loop(rounds: int, half: bool) -> None:
    model, x, ends, target = Experts(), *_data(rounds)
    reference = ByLoop()
    reference.load_state_dict(copy.deepcopy(model.state_dict()))
    if half:
        model, x, target = model.half(), x.half(), target.half()
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(rounds)
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1.0))
    given, _ = executor(x, ends, target)

    micro_batches = zip(*(t.float().chunk(rounds) for t in (x, ends, target)), strict=True)
    parts = [reference(*part) for part in micro_batches]
    (sum(loss for _, loss in parts) / rounds).backward()
    expected = (reference.weight - reference.weight.grad).detach()
    short = torch.float16 if half else torch.float32
    assert_close_sums(given.float(), torch.cat([y for y, _ in parts]).detach(), terms=IN, dtype=short)
    assert_close_sums(model.weight.detach().float(), expected, terms=ROWS, steps=2, dtype=short)


@pytest.mark.parametrize(
    ("left", "right", "ends"),
    [((3, 5, 8), (3, 8, 4), None), ((8, 9), (9, 4), (2, 7, 9)), ((3, 5, 8), (8, 12), (3, 7, 12))],
    ids=["batched", "terms", "columns"],
)
def test_the_other_forms(left: tuple[int, ...], right: tuple[int, ...], ends: tuple[int, ...] | None) -> None:
    class Product(nn.Module):
        def forward(self, a, b, offs=None):  # type: ignore[no-untyped-def]
            return torch._grouped_mm(a, b, offs=None if offs is None else offs.to(torch.int32))

    a, b = torch.randn(left), torch.randn(right)
    offs = () if ends is None else (torch.tensor(ends),)
    bounds = [] if ends is None else list(zip([0, *ends], ends, strict=False))
    if ends is None:
        expected = a @ b
    elif len(left) == 2:
        expected = torch.stack([a[:, s:e] @ b[s:e] for s, e in bounds])
    else:
        expected = torch.cat([a[i] @ b[:, s:e] for i, (s, e) in enumerate(bounds)], dim=1)
    assert_close_sums(poptorch.inferenceModel(Product())(a, b, *offs), expected, terms=9)
