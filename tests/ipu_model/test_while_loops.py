"""The cost of loops whose number of iterations is known on the device only."""

from __future__ import annotations

import torch
from lowered_programs import lowered, operations
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

from poptorch.ipu_model.architecture import architecture
from poptorch.ipu_model.costing import cost_of

BOW = architecture("bow")


class Loop(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return while_loop(lambda v: v.norm() > 1, lambda v: (self.layers(v),), (x,))[0]


def test_one_iteration_and_the_decision_count() -> None:
    def found(layers: int) -> float:
        (node,) = [n for n in operations(lowered(Loop(layers), torch.ones(8, 64))) if "while" in str(n.target)]
        cost = cost_of(node, BOW)
        assert cost.covered
        return cost.cycles(BOW)

    assert 0 < found(1) < found(4)
