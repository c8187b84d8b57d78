"""Equal forms of a graph give equal results."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import poptorch
from poptorch.compiler.codegen.rewriting import BiasesApart

aten = torch.ops.aten


def rewritten(function, *values):
    module = make_fx(function)(*values)
    for node, value in zip(module.graph.find_nodes(op="placeholder"), values, strict=True):
        node.meta["val"] = value
    BiasesApart()(module.graph)
    module.recompile()
    return module


def test_biases_leave_their_products_and_other_sums_stay():
    x, w, bias, matrix = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5), torch.randn(3, 5)

    def function(x, w, bias, matrix):
        return torch.addmm(bias, x, w), torch.addmm(matrix, x, w), torch.addmm(bias, x, w, beta=2)

    module = rewritten(function, x, w, bias, matrix)
    assert len(module.graph.find_nodes(op="call_function", target=aten.addmm.default)) == 2
    torch.testing.assert_close(module(x, w, bias, matrix), function(x, w, bias, matrix))


def test_short_types_keep_the_single_rounding():
    values = [torch.randn(shape).half() for shape in ((5,), (3, 4), (4, 5))]
    module = rewritten(lambda bias, x, w: torch.addmm(bias, x, w), *values)
    assert module.graph.find_nodes(op="call_function", target=aten.addmm.default)


@pytest.mark.parametrize("stages", [1, 2])
def test_native_training_with_biases_equals_eager(stages, monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    torch.manual_seed(0)
    model, reference = Layers(), Layers()
    reference.load_state_dict(model.state_dict())
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    if stages == 2:
        model.second = poptorch.BeginBlock(model.second, ipu_id=1)
    x = torch.randn(8, 4)
    poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))(x)
    for block in x.chunk(4):
        (reference(block) / 4).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.detach(), other.detach())


class Layers(nn.Module):
    """Two linear layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        y = self.second(torch.tanh(self.first(x)))
        return poptorch.identity_loss((y * y).mean(), reduction="none")
