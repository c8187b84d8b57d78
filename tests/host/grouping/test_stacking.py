"""Programs for several micro-batches: what is folded into rows, what is summed, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from poptorch.host.grouping.stacking import CannotGroup, stacked
from poptorch.program.opinfo import STREAMS, info_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Role, value_of

aten = torch.ops.aten


class Net(nn.Module):
    """Its function with some layers, and a loss."""

    def __init__(self, function, *layers):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs):
        return poptorch.identity_loss(self.function(*self.layers, *inputs), reduction="mean")


def training_program(function, layers, *inputs):
    model = Net(function, *layers)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(*inputs)
    return executor.program


def nodes(program, *targets):
    return [n for n in program.operations() if n.target in targets]


def test_rows_of_all_micro_batches_are_multiplied_at_once():
    layers = [nn.Linear(6, 5), nn.Linear(5, 4)]
    program = training_program(lambda a, b, x: b(torch.relu(a(x))), layers, torch.ones(2, 6))
    result = stacked(program, 3)
    assert [p.shape for p in result.ports_of(Role.INPUT)] == [(3, 2, 6)]
    assert [p.shape for p in result.ports_of(Role.PARAMETER)] == [p.shape for p in program.ports_of(Role.PARAMETER)]
    assert {value_of(n).shape[0] for n in nodes(result, aten.addmm.default)} == {6}
    assert not nodes(result, aten.bmm.default)
    gradients = result.values_of(OutputKind.GRADIENT)
    assert [tuple(value_of(g).shape) for g in gradients] == [(5, 6), (5,), (4, 5), (4,)]
    # Products of long factors, as the accumulator likes them; nothing is multiplied micro-batch by micro-batch.
    assert gradients[0].target is aten.mm.default
    assert gradients[0].args[0].target is aten.t.default


def test_gradients_of_layers_are_summed_by_the_layers_themselves():
    def forward(embedding, conv, norm, tokens, x):
        return embedding(tokens).sum() + norm(conv(x)).sum()

    layers = [nn.Embedding(9, 3), nn.Conv1d(2, 4, 3), nn.LayerNorm(5)]
    program = training_program(forward, layers, torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 2, 7))
    result = stacked(program, 3)
    for target in (
        aten.embedding_dense_backward.default,
        aten.convolution_backward.default,
        aten.native_layer_norm_backward.default,
    ):
        assert len(nodes(result, target)) == len(nodes(program, target)) == 1
    assert value_of(nodes(result, aten.embedding_dense_backward.default)[0]).shape == (9, 3)


def test_a_weight_with_several_uses():
    """Sums of gradients, scaled gradients, and a gradient that is also a value of the micro-batch."""

    def forward(layer, x):
        return (3.0 * layer(torch.tanh(layer(x)))).sum() + layer.weight.sum()

    program = training_program(forward, [nn.Linear(4, 4, bias=False)], torch.ones(2, 4))
    result = stacked(program, 2)
    assert value_of(result.values_of(OutputKind.GRADIENT)[0]).shape == (4, 4)


def test_each_micro_batch_draws_its_own_numbers():
    program = training_program(lambda a, x: torch.dropout(a(x), 0.5, True), [nn.Linear(4, 4)], torch.ones(2, 4))
    [stream] = {info_of(n).random for n in program.operations()} - {None}
    drawn = {info_of(n).random for n in stacked(program, 3).operations()} - {None}
    assert drawn == {stream + member * STREAMS for member in range(3)}


@pytest.mark.parametrize("micro_batches", [2, 3])
@pytest.mark.parametrize(
    "function", [lambda y: F.rrelu(y, training=True), lambda y: torch.native_dropout(y, 0.5, True)[0]]
)
def test_random_operations_with_several_results(monkeypatch, function, micro_batches):
    """Each micro-batch takes its part of what it drew; the gradient goes through the same numbers."""
    monkeypatch.setenv("POPTORCH_GROUP", str(micro_batches))
    layer = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        layer.weight.copy_(-torch.eye(4))

    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            y = function(self.layer(x))
            return y, poptorch.identity_loss(y, reduction="sum")

    model = Drawing()
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(micro_batches)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=1.0))
    x = torch.rand(2 * micro_batches, 4) + 1
    y, _ = training(x)
    slopes = y / -x
    assert bool(((slopes >= 0) & (slopes <= 2)).all())
    torch.testing.assert_close(-torch.eye(4) - layer.weight.detach(), slopes.T @ x)


def test_annotations_stay():
    program = training_program(lambda a, x: torch.tanh(a(x)), [nn.Linear(4, 4)], torch.ones(2, 4))
    result = stacked(program, 2)
    assert {info_of(n).sweep for n in result.operations()} == {info_of(n).sweep for n in program.operations()}
    assert all(info_of(n).source is not None for n in nodes(result, aten.tanh.default))


def test_a_large_gradient_for_each_micro_batch_is_refused():
    def forward(layer, x):
        return (layer.weight * x.sum()).sin().sum()

    small, large = nn.Linear(16, 16, bias=False), nn.Linear(1 << 10, 1 << 11, bias=False)
    assert stacked(training_program(forward, [small], torch.ones(1, 2)), 2).group_size == 2  # summed afterwards
    with pytest.raises(CannotGroup, match="a large gradient for each micro-batch"):
        stacked(training_program(forward, [large], torch.ones(1, 2)), 2)


def test_what_torch_cannot_batch_is_refused_with_its_reason():
    executor = poptorch.inferenceModel(nn.LSTM(3, 4))
    executor.compile(torch.ones(5, 2, 3))
    with pytest.raises(CannotGroup, match="mkldnn_rnn_layer"):
        stacked(executor.program, 2)


def test_written_buffers_are_refused():
    executor = poptorch.inferenceModel(nn.BatchNorm1d(3).train())
    executor.compile(torch.ones(4, 3))
    with pytest.raises(CannotGroup, match="writes to buffers"):
        stacked(executor.program, 2)
