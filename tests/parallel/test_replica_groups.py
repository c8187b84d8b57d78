"""Weights that differ between groups of replicas, and inputs that groups share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from poptorch import CommGroupType, VariableRetrievalMode

REPLICAS = 8


class Sharded(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, x):
        y = x @ self.weight
        return y, poptorch.identity_loss((y**2).mean(), reduction="none")


def data_of(steps=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 12, generator=generator), [torch.randn(8, 5, generator=generator) for _ in range(steps)]


def on_the_host(weight, batches, optimizer, **settings):
    model = Sharded(weight)
    optimizer = optimizer(model.parameters(), **settings)
    losses = []
    for batch in batches:
        _, loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.weight.detach()


@pytest.mark.parametrize("optimizer", [poptorch.optim.SGD, poptorch.optim.Adam])
@pytest.mark.parametrize("weights", [CommGroupType.Consecutive, CommGroupType.Orthogonal])
def test_columns_in_four_groups_and_rows_in_two(weights, optimizer):
    """Eight replicas: the weight's columns in 4 groups, the batch in 2, each combination once."""
    weight, batches = data_of()
    inputs = CommGroupType.Orthogonal if weights is CommGroupType.Consecutive else CommGroupType.Consecutive
    options = poptorch.Options().replicationFactor(REPLICAS)
    options.inputReplicaGrouping(4, inputs)
    options.outputMode(poptorch.OutputMode.All)
    model = Sharded(torch.stack(weight.chunk(4, dim=1)))
    training = poptorch.trainingModel(model, options, optimizer(model.parameters(), lr=0.1))
    training.weight.replicaGrouping(weights, 2, VariableRetrievalMode.OnePerGroup)
    losses = [training(batch)[1].sum().item() / REPLICAS for batch in batches]
    expected_losses, expected = on_the_host(weight, batches, optimizer, lr=0.1)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected_losses), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.cat(tuple(model.weight.detach()), dim=1), expected, atol=1e-6, rtol=0)


def test_running_mean_is_the_same_mean():
    weight, batches = data_of()
    results = []
    for strategy in (poptorch.MeanReductionStrategy.Post, poptorch.MeanReductionStrategy.Running):
        options = poptorch.Options().replicationFactor(REPLICAS)
        options.inputReplicaGrouping(4, CommGroupType.Consecutive)
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
        model = Sharded(torch.stack(weight.chunk(4, dim=1)))
        training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
        training.weight.replicaGrouping(CommGroupType.Orthogonal, 2, VariableRetrievalMode.AllReplicas)
        training(batches[0])
        results.append(model.weight.detach().clone())
    torch.testing.assert_close(*results)


def test_without_grouping_every_replica_has_its_own_row_and_state():
    options = poptorch.Options().replicationFactor(4)
    model = Sharded(torch.ones(4, 5, 3))
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    training.weight.replicaGrouping(CommGroupType.NoGrouping, 0, VariableRetrievalMode.OnePerGroup)
    training(torch.arange(20.0).reshape(4, 5))
    state = optimizer.state_dict()["ipu_state"]
    shapes = {tuple(value.shape) for name, value in state.items() if "weight" in name and value.dim() > 1}
    assert shapes == {(4, 5, 3)}
    rows = model.weight.detach()
    assert not torch.equal(rows[0], rows[3])


def test_inference():
    options = poptorch.Options().replicationFactor(2)

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.tensor([[2.0], [3.0]]))

        def forward(self, x):
            return x * self.factor

    inference = poptorch.inferenceModel(Scale(), options)
    assert isinstance(inference.factor, torch.Tensor)
    inference.factor.replicaGrouping(CommGroupType.NoGrouping, 1, VariableRetrievalMode.OnePerGroup)
    assert inference(torch.ones(2, 1)).tolist() == [[2.0], [3.0]]


def wrapped(weight, replicas=4):
    return poptorch.trainingModel(Sharded(weight), poptorch.Options().replicationFactor(replicas))


def test_refusals():
    consecutive, one = CommGroupType.Consecutive, VariableRetrievalMode.OnePerGroup
    for weight, size, message in (
        (torch.ones(()), 2, "Scalars cannot be passed"),
        (torch.ones(2, 5, 3), 3, "do not divide"),
        (torch.ones(3, 5, 3), 2, "its first dimension is 3, but there are 2 groups"),
    ):
        training = wrapped(weight)
        with pytest.raises(poptorch.Error, match=message):
            training.weight.replicaGrouping(consecutive, size, one)
    training = wrapped(torch.ones(5, 3))
    training(torch.ones(4, 5))
    with pytest.raises(poptorch.Error, match="after compilation"):
        training.weight.replicaGrouping(consecutive, 2, one)


def test_optimizers_that_measure_norms_are_refused():
    model = Sharded(torch.ones(2, 5, 3))
    options = poptorch.Options().replicationFactor(2)
    training = poptorch.trainingModel(model, options, poptorch.optim.LAMB(model.parameters()))
    training.weight.replicaGrouping(CommGroupType.NoGrouping, 1, VariableRetrievalMode.OnePerGroup)
    with pytest.raises(poptorch.Error, match="every group would need norms of its own"):
        training(torch.ones(2, 5))


def test_all_means_no_grouping():
    training = wrapped(torch.ones(5, 3))
    training.weight.replicaGrouping(CommGroupType.All, 0, VariableRetrievalMode.OnePerGroup)
    training(torch.ones(4, 5))
    assert training.weight.shape == (5, 3)
