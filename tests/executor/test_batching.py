"""What one call computes, for every output mode and loop nest, against a plain eager loop (executor §5.4, §6, §7)."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch import OutputMode, ReductionType


class Net(nn.Module):
    """Returns a batch output, a 0-d loss, and something whose first dimension is not the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3)

    def forward(self, x, target):
        y = self.fc(x)
        return y, nn.functional.mse_loss(y, target), y.sum(0)


def eager(model, x, target, d, g, r, lr, reduction, training):
    """The ten lines that define the loop: blocks in the order D, G, R."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    divisor = g * r if reduction is ReductionType.Mean else 1
    blocks = []
    rows = x.shape[0] // (d * g * r)
    for start in range(0, x.shape[0], rows):
        output = model(x[start : start + rows], target[start : start + rows])
        blocks.append([t.detach().clone() for t in output])
        if training:
            (output[1] / divisor).backward()
            if len(blocks) % (g * r) == 0:
                optimizer.step()
                optimizer.zero_grad()
    return blocks


def select(blocks, mode, n, d, g, r):
    """Which blocks an output mode returns."""
    if mode is OutputMode.Final:
        return blocks[-r:]
    if mode is OutputMode.EveryN:
        return [b for i, b in enumerate(blocks) if (i // (g * r) + 1) % n == 0]
    if mode is OutputMode.Sum:
        return [[torch.stack([b[k] for b in blocks[i::r]]).sum(0) for k in range(3)] for i in range(r)]
    return blocks


def joined(blocks, position):
    values = [b[position] for b in blocks]
    if len(values) == 1:
        return values[0]
    return torch.stack(values) if values[0].ndim == 0 else torch.cat(values)


loops = st.tuples(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from(list(OutputMode))
)


@settings(max_examples=40, deadline=None)
@given(
    loop=loops,
    training=st.booleans(),
    reduction=st.sampled_from([ReductionType.Mean, ReductionType.Sum]),
    data=st.data(),
)
def test_every_loop_and_mode_equals_the_eager_loop(loop, training, reduction, data):
    d, g, r, rows, mode = loop
    g = g if training else 1
    n = data.draw(st.sampled_from([k for k in range(1, d + 1) if d % k == 0])) if mode is OutputMode.EveryN else 1
    torch.manual_seed(d * 100 + g * 10 + r)
    model = Net()
    reference = copy.deepcopy(model)
    total = d * g * r * rows
    x, target = torch.randn(total, 2), torch.randn(total, 3)
    options = poptorch.Options().deviceIterations(d).replicationFactor(r).autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(g).accumulationAndReplicationReductionType(reduction)
    options.outputMode(mode, n if mode is OutputMode.EveryN else None)
    blocks = eager(reference, x, target, d, g, r, 0.1, reduction, training)
    if mode is OutputMode.Default:
        mode = OutputMode.Final if training else OutputMode.All
    if training:
        executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    else:
        executor = poptorch.inferenceModel(model, options)
    outputs = executor(x, target)
    wanted = select(blocks, mode, n, d, g, r)
    for position, output in enumerate(outputs):
        assert_close_sums(output, joined(wanted, position), terms=d * g * r * rows, steps=d, scale=1.0)
        assert output.is_contiguous()
    if training:
        assert_close_sums(model.fc.weight.data, reference.fc.weight.data, terms=g * r * rows, steps=d)
        executor.destroy()


def test_sizes_of_the_specification():
    """The last three rows of the table in the specification: D=4, R=2, G=3, B=8."""
    for mode, period, rows in [(OutputMode.Final, None, 16), (OutputMode.All, None, 192), (OutputMode.EveryN, 2, 96)]:
        model = Net()
        options = poptorch.Options().deviceIterations(4).replicationFactor(2).outputMode(mode, period)
        options.Training.gradientAccumulation(3)
        output, loss, _ = poptorch.trainingModel(model, options)(torch.randn(192, 2), torch.randn(192, 3))
        assert output.shape == (rows, 3)
        assert loss.shape == (rows // 8,)


def test_inputs_may_have_different_batch_sizes():
    class Two(nn.Module):
        def forward(self, x, y):
            return x.sum(1), y * 2

    executor = poptorch.inferenceModel(Two(), poptorch.Options().deviceIterations(2))
    x, y = torch.randn(6, 3), torch.randn(2)
    a, b = executor(x, y)
    assert_close_sums(a, x.sum(1), terms=8)
    assert_close_sums(b, y * 2, terms=1)


@pytest.mark.parametrize("shape", [(3, 2), ()])
def test_rows_must_be_a_multiple_of_the_factors(shape):
    class Identity(nn.Module):
        def forward(self, x):
            return x + 1

    executor = poptorch.inferenceModel(Identity(), poptorch.Options().deviceIterations(2))
    with pytest.raises(AssertionError, match="Invalid batch dimension") as error:
        executor(torch.ones(shape))
    assert "deviceIterations 2" in str(error.value)
    assert executor(torch.ones(2)).tolist() == [2, 2]


def test_return_period_must_divide_the_iterations():
    options = poptorch.Options().deviceIterations(5).outputMode(OutputMode.EveryN, 2)
    with pytest.raises(poptorch.Error, match="must divide deviceIterations"):
        poptorch.inferenceModel(nn.ReLU(), options)(torch.ones(5))


@pytest.mark.parametrize("group_type", [poptorch.CommGroupType.Consecutive, poptorch.CommGroupType.Orthogonal])
def test_replicas_of_an_input_group_get_the_same_rows(group_type):
    options = poptorch.Options().replicationFactor(4).inputReplicaGrouping(2, group_type)
    output = poptorch.inferenceModel(nn.Identity(), options)(torch.tensor([1.0, 2.0]))
    consecutive = group_type is poptorch.CommGroupType.Consecutive
    assert output.tolist() == ([1, 1, 2, 2] if consecutive else [1, 2, 1, 2])


def test_one_forward_execution_for_a_whole_call():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(1, 1)
            self.calls = []

        def forward(self, x):
            self.calls.append(x.shape)
            return poptorch.identity_loss(self.fc(x).sum(), reduction="none")

    model = Counting()
    options = poptorch.Options().deviceIterations(4)
    options.Training.gradientAccumulation(5)
    executor = poptorch.trainingModel(model, options)
    for _ in range(3):
        executor(torch.ones(40, 1))
    assert model.calls == [torch.Size([2, 1])]


def test_losses_fall_within_one_call():
    torch.manual_seed(0)
    model = Net()
    options = poptorch.Options().deviceIterations(200).outputMode(OutputMode.All)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.05))
    x, target = torch.ones(200, 2), torch.ones(200, 3)
    _, losses, _ = executor(x, target)
    means = losses.view(4, 50).mean(1)
    assert all(a > b for a, b in itertools.pairwise(means))


@pytest.mark.parametrize("mode", list(OutputMode))
def test_counters_have_one_stamp_per_transfer(mode):
    d, g, r = 4, 3, 2
    options = poptorch.Options().deviceIterations(d).replicationFactor(r)
    options.Training.gradientAccumulation(g)
    options.outputMode(mode, 2 if mode is OutputMode.EveryN else None)
    model = Net()
    executor = poptorch.trainingModel(model, options)
    events = ("input", "input_complete", "output", "output_complete")
    assert executor.getPerfCounters() == {name: [[]] for name in events}
    assert executor.getLatency() == (0.0, 0.0, 0.0)
    executor(torch.randn(d * g * r, 2), torch.randn(d * g * r, 3))
    stamps = executor.getPerfCounters()
    outputs = {OutputMode.All: d * g * r, OutputMode.EveryN: d // 2 * g * r}.get(mode, r)
    assert [len(s) for s in stamps["input"]] == [d * g * r] * 2
    assert [len(s) for s in stamps["input_complete"]] == [d * g * r] * 2
    assert [len(s) for s in stamps["output"]] == [outputs] * 3
    assert [len(s) for s in stamps["output_complete"]] == [outputs] * 3
    for latency in (
        executor.getLatency(), executor.getHostIpuLatency(), executor.getComputeLatency(), executor.getIpuHostLatency()
    ):  # fmt: skip
        low, high, mean = latency
        assert 0 <= low <= mean <= high


def test_synthetic_data_reads_no_input_and_sends_no_output():
    options = poptorch.Options().deviceIterations(3).enableSyntheticData(True)
    executor = poptorch.inferenceModel(nn.Identity(), options)
    x = torch.full((3, 2), float("nan"))
    assert executor(x).shape == (3, 2)
    assert executor.getPerfCounters()["output"] == [[]]
    assert executor.getLatency() == (0.0, 0.0, 0.0)
