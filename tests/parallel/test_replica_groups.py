"""Weights that differ between groups of replicas, and inputs that groups share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
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
    assert_close_sums(losses, expected_losses, terms=96, steps=3)
    assert_close_sums(torch.cat(tuple(model.weight.detach()), dim=1), expected, terms=96, steps=3)


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
    assert_close_sums(*results, terms=96)


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


class Shifted(nn.Module):
    """A weight with rows for groups, and one that all replicas share."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(2, 3, 4, generator=generator))
        self.shift = nn.Parameter(torch.randn(4, generator=generator))

    def forward(self, x):
        return self.loss(x, self.weight, self.shift)

    @staticmethod
    def loss(x, weight, shift):
        return poptorch.identity_loss(((x @ weight + shift) ** 2).mean(), reduction="none")


def train_in_groups(make_optimizer, kind, steps=3):
    """Four replicas in two groups; the weights after some steps, and the batches."""
    model = Shifted()
    options = poptorch.Options().replicationFactor(4)
    training = poptorch.trainingModel(model, options, make_optimizer(model.parameters()))
    training.weight.replicaGrouping(kind, 2, VariableRetrievalMode.OnePerGroup)
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randn(8, 3, generator=generator) for _ in range(steps)]
    for batch in batches:
        training(batch)
    return model.weight.detach(), model.shift.detach(), batches


def group_of(kind, replica):
    return replica // 2 if kind is CommGroupType.Consecutive else replica % 2


def reference(kind, batches, step):
    """Each group's weight is a tensor of its own; ``step(weights, shift, gradients)`` is one update of all."""
    start = Shifted()
    weights = [row.clone() for row in start.weight.detach()]
    shift = start.shift.detach().clone()
    for batch in batches:
        leaves = [t.clone().requires_grad_() for t in (*weights, shift)]
        parts = batch.chunk(4)
        losses = [Shifted.loss(parts[r], leaves[group_of(kind, r)], leaves[-1]) for r in range(4)]
        step([*weights, shift], torch.autograd.grad(sum(losses) / 4, leaves))
    return torch.stack(weights), shift


@pytest.mark.parametrize("kind", [CommGroupType.Consecutive, CommGroupType.Orthogonal])
def test_lamb_measures_every_group_by_itself(kind):
    rate, beta1, beta2, eps, decay = 0.1, 0.9, 0.99, 1e-6, 0.02

    def make(parameters):
        return poptorch.optim.LAMB(parameters, lr=rate, betas=(beta1, beta2), eps=eps, weight_decay=decay)

    first, second, count = {}, {}, 0

    def step(weights, gradients):
        nonlocal count
        count += 1
        for index, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            m = first[index] = beta1 * first.get(index, 0.0) + (1 - beta1) * gradient
            v = second[index] = beta2 * second.get(index, 0.0) + (1 - beta2) * gradient**2
            direction = (m / (1 - beta1**count)) / ((v / (1 - beta2**count)).sqrt() + eps) + decay * weight
            weight -= rate * weight.norm() / direction.norm() * direction

    weight, shift, batches = train_in_groups(make, kind)
    expected_weight, expected_shift = reference(kind, batches, step)
    assert_close_sums((weight, shift), (expected_weight, expected_shift), terms=32, steps=3)


def test_native_code_measures_the_same(monkeypatch):
    def make(parameters):
        return poptorch.optim.LAMB(parameters, lr=0.1)

    interpreted = train_in_groups(make, CommGroupType.Consecutive)
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    native = train_in_groups(make, CommGroupType.Consecutive)
    assert_close_sums(native, interpreted, terms=32, steps=3)


@pytest.mark.parametrize("kind", [CommGroupType.Consecutive, CommGroupType.Orthogonal])
@pytest.mark.parametrize("limit", [0.05, 0.5, 1e6])
def test_clipping_measures_what_a_replica_holds(kind, limit):
    """The weight that all share is clipped by the group with the longest gradient."""

    def step(weights, gradients):
        shared = gradients[-1].norm()
        lengths = [torch.hypot(gradient.norm(), shared) for gradient in gradients[:-1]]
        factors = [limit / max(length, limit) for length in (*lengths, max(lengths))]
        for weight, gradient, factor in zip(weights, gradients, factors, strict=True):
            weight -= 0.1 * factor * gradient

    def make(parameters):
        # Clipping sees the sum over the replicas, of which the mean is part of the learning rate.
        return poptorch.optim.SGD(parameters, lr=0.1, max_grad_norm=4 * limit)

    weight, shift, batches = train_in_groups(make, kind)
    expected_weight, expected_shift = reference(kind, batches, step)
    assert_close_sums((weight, shift), (expected_weight, expected_shift), terms=32, steps=3)


def test_clipped_adam_steps_every_group_once():
    """Its step count belongs to the weight, not to a row; the host sees it once for each group."""
    model = Shifted()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1, max_grad_norm=0.5)
    training = poptorch.trainingModel(model, poptorch.Options().replicationFactor(2), optimizer)
    training.weight.replicaGrouping(CommGroupType.NoGrouping, 1, VariableRetrievalMode.OnePerGroup)
    for _ in range(2):
        training(torch.ones(2, 3))
    state = optimizer.state_dict()["ipu_state"]
    assert state["Step___weight"].tolist() == [2, 2]
    assert state["Accl1___weight"].shape == (2, 3, 4)


def test_two_groupings_in_one_model_stay_equal_where_they_are_shared():
    """A replica's own pair of rows differs from that of its group's other member: the longest gradient counts."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.tensor([[1.0], [2.0]]))
            self.b = nn.Parameter(torch.tensor([[3.0], [4.0]]))

        def forward(self, x):
            return poptorch.identity_loss((x * self.a).sum() + (x * self.b).sum() * 2, reduction="sum")

    model = Pair()
    options = poptorch.Options().replicationFactor(4)
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=4.0, max_grad_norm=1.0))
    training.a.replicaGrouping(CommGroupType.Consecutive, 2, VariableRetrievalMode.OnePerGroup)
    training.b.replicaGrouping(CommGroupType.Orthogonal, 2, VariableRetrievalMode.OnePerGroup)
    training(torch.tensor([[0.0], [3.0], [1.0], [0.0]]))
    # Sums over the groups: a has 3 (replicas 0, 1) and 1 (2, 3); b has 2 (0, 2) and 6 (1, 3).
    longest_a = [max((9 + 4) ** 0.5, (9 + 36) ** 0.5), max((1 + 4) ** 0.5, (1 + 36) ** 0.5)]
    longest_b = [max((9 + 4) ** 0.5, (1 + 4) ** 0.5), max((9 + 36) ** 0.5, (1 + 36) ** 0.5)]
    expected_a = torch.tensor([[1 - 3 / longest_a[0]], [2 - 1 / longest_a[1]]])
    expected_b = torch.tensor([[3 - 2 / longest_b[0]], [4 - 6 / longest_b[1]]])
    assert_close_sums(model.a.detach(), expected_a, terms=8)
    assert_close_sums(model.b.detach(), expected_b, terms=8)


@pytest.mark.parametrize("kind", [CommGroupType.Consecutive, CommGroupType.Orthogonal])
def test_all_replicas_reads_a_row_for_each_replica(kind):
    one, _, batches = train_in_groups(lambda p: poptorch.optim.SGD(p, lr=0.1), kind)
    model = Shifted()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, poptorch.Options().replicationFactor(4), optimizer)
    training.weight.replicaGrouping(kind, 2, VariableRetrievalMode.AllReplicas)
    training(batches[0])
    state = {name: value.clone() for name, value in training.state_dict().items()}
    assert state["weight"].shape == (4, 3, 4)
    assert model.shift.shape == (4,)
    training(batches[1])
    training.load_state_dict(state)  # what was read can be written
    training.setOptimizer(optimizer)
    training(batches[1])
    training(batches[2])
    for replica in range(4):
        assert_close_sums(model.weight.detach()[replica], one[group_of(kind, replica)], terms=32, steps=3)


def test_what_was_read_of_all_replicas_can_be_compiled_again():
    model = Shifted()
    options = poptorch.Options().replicationFactor(4)
    first = poptorch.trainingModel(model, options)
    first.weight.replicaGrouping(CommGroupType.Orthogonal, 2, VariableRetrievalMode.AllReplicas)
    first(torch.ones(4, 3))
    first.destroy()
    assert model.weight.shape == (4, 3, 4)
    second = poptorch.inferenceModel(model, options)
    second.weight.replicaGrouping(CommGroupType.Orthogonal, 2, VariableRetrievalMode.AllReplicas)
    expected = [Shifted.loss(torch.ones(1, 3), row, model.shift) for row in model.weight]
    assert_close_sums(second(torch.ones(4, 3)), torch.stack(expected).detach(), terms=16)


def test_all_means_no_grouping():
    training = wrapped(torch.ones(5, 3))
    training.weight.replicaGrouping(CommGroupType.All, 0, VariableRetrievalMode.OnePerGroup)
    training(torch.ones(4, 5))
    assert training.weight.shape == (5, 3)


def test_groups_are_a_part_of_the_saved_model(tmp_path):
    model = Grouped()
    executor = poptorch.trainingModel(
        model, poptorch.Options().replicationFactor(4), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    executor.w.replicaGrouping(poptorch.CommGroupType.Consecutive, 2, poptorch.VariableRetrievalMode.OnePerGroup)
    x = torch.arange(32.0).reshape(8, 4) / 8
    executor(x, x)
    path = str(tmp_path / "grouped.poptorch")
    executor.save(path)
    expected = executor(x, x)
    assert_close_sums(poptorch.load(path)(x, x), expected, terms=16)


class Grouped(nn.Module):
    """A weight with one value for each of two groups of replicas."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.arange(32.0).reshape(2, 4, 4) / 16)

    def forward(self, x, target):
        return nn.functional.mse_loss(x @ self.w, target)
