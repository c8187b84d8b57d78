"""Sparse tensors of a model: constants work, what the device would have to hold or train is refused by name."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")


def adjacency() -> torch.Tensor:
    return torch.tensor([[0.0, 1, 0], [2, 0, 0], [0, 0, 3]])


class Graph(nn.Module):
    """One layer of a graph network with its adjacency in a buffer."""

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("adjacency", matrix)
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        y = torch.sparse.mm(self.adjacency, self.layer(x[0]))
        return y, poptorch.identity_loss((y + self.adjacency @ y).pow(2).sum(), "sum")


@pytest.mark.parametrize("level", ["interpret", "native"])
def test_a_sparse_buffer_is_a_constant(level, monkeypatch):
    monkeypatch.setenv("POPTORCH_CODEGEN", level)
    torch.manual_seed(0)
    model = Graph(adjacency().to_sparse())
    expected = copy.deepcopy(model)
    options = poptorch.Options().deviceIterations(2)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.01))
    x = torch.randn(2, 3, 3)
    executor(x)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.01)
    for rows in x:
        optimizer.zero_grad()
        expected(rows[None])[1].backward()
        optimizer.step()
    torch.testing.assert_close(model.layer.weight, expected.layer.weight)
    assert torch.equal(model.adjacency.to_dense(), adjacency())
    assert torch.equal(executor.state_dict()["adjacency"].to_dense(), adjacency())
    executor.destroy()


class Uncoalesced(Graph):
    def forward(self, x):
        return self.layer(torch.sparse.mm(self.adjacency.coalesce(), x[0])), self.adjacency.to_dense()


def test_entries_that_occur_twice_are_added():
    twice = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [1, 2, 2]]), torch.ones(3), (3, 3))
    model, x = Uncoalesced(twice), torch.randn(1, 3, 3)
    executor = poptorch.inferenceModel(model)
    torch.testing.assert_close(list(executor(x)), [value.detach() for value in model(x)])
    executor.destroy()


@pytest.mark.parametrize(
    ("make", "form"),
    [
        (lambda: adjacency().to_sparse_csr(), r"tensor with the layout torch\.sparse_csr"),
        (lambda: torch.quantize_per_tensor(adjacency(), 0.1, 0, torch.qint8), "quantised tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_other_forms_are_refused_by_name(make, form):
    with pytest.raises(poptorch.Error, match=rf"The buffer adjacency is a {form}.*use to_dense\(\)"):
        poptorch.inferenceModel(Graph(make()))(torch.ones(1, 3, 3))


def test_a_sparse_parameter_is_refused_by_name():
    model = Graph(torch.zeros(1))
    del model.adjacency
    model.adjacency = nn.Parameter(adjacency().to_sparse())
    with pytest.raises(poptorch.Error, match=r"The parameter adjacency is a tensor with the layout torch\.sparse_coo"):
        poptorch.inferenceModel(model)(torch.ones(1, 3, 3))


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)

    def forward(self, x):
        y = self.table(x)  # the line
        return y, poptorch.identity_loss(y.sum(), "sum")


def test_a_sparse_gradient_names_its_line():
    model = Embedding()
    executor = poptorch.trainingModel(model, poptorch.Options(), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match=r"gradient of parameter table\.weight, which is used at") as error:
        executor(torch.tensor([1, 2]))
    lines = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if text.endswith("# the line"))
    assert f"test_sparse.py:{line}" in str(error.value)
    assert "sparse=False" in str(error.value)
