"""Equal layers are found by their data flow, compiled once, and give what the whole graph gives."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import poptorch
from closeness import assert_close_sums
from poptorch.host.native import inductor, outlining
from poptorch.host.native.outlining import LEAST_REPEATS, find_repeat

LAYERS = LEAST_REPEATS + 2


def layer(x, weight, skip):
    y = torch.tanh(x @ weight)
    largest, _ = y.max(dim=1, keepdim=True)
    z = (y - largest).exp() * skip
    return (z + x).sin().cos() * 0.5 + y


def traced(depth=LAYERS, *, write=False):
    def function(x, *weights):
        first = x
        for weight in weights:
            x = layer(x, weight, first)
        if write:
            weights[0].copy_(weights[0] * 2)
        return (x * 3, first)

    with inductor.fake_mode():
        fakes = [torch.empty(4, 8), *(torch.empty(8, 8) for _ in range(depth))]
        return inductor.decompose(function, fakes), fakes


def interpreted(graph_module, fakes, target, **_):
    """Instead of Inductor: counts how often it would have been called."""
    interpreted.compiled += 1
    module = fx.GraphModule(graph_module, graph_module.graph)
    strides = [o.meta["val"].stride() for o in graph_module.graph.output_node().args[0]]

    def run(flat):
        operands = list(flat)
        flat.clear()
        return module(*operands)

    return inductor.Compiled(run, strides)


def run_outline(outline, given):
    """The calls of an outline, one after the other."""
    values = {**outline.constants, **dict(zip(outline.inputs, given, strict=True))}
    for part in outline.parts:
        values |= zip(part.outputs, part.kernel.run([values[n] for n in part.inputs]), strict=True)
    return tuple(values[n] for n in outline.outputs)


@pytest.mark.parametrize("write", [False, True])
def test_layers_are_compiled_once(monkeypatch, write):
    monkeypatch.setattr(outlining, "compile_graph", interpreted)
    interpreted.compiled = 0
    graph_module, fakes = traced(write=write)
    repeat = find_repeat(graph_module.graph)
    assert repeat.count >= LEAST_REPEATS
    outline = outlining.outlined(graph_module, fakes, inductor.Target(1))
    assert interpreted.compiled <= 3  # what is before, the layer, what is behind
    torch.manual_seed(0)
    given = [torch.randn(4, 8), *(torch.randn(8, 8) for _ in range(LAYERS))]
    expected = graph_module(*(t.clone() for t in given))
    written = [t.clone() for t in given]
    assert_close_sums(run_outline(outline, written), tuple(expected), terms=8, steps=LAYERS)
    assert torch.equal(written[1], given[1] * (2 if write else 1))


def test_shallow_graphs_stay_whole():
    assert find_repeat(traced(LEAST_REPEATS - 2)[0].graph) is None


def test_layers_with_other_data_flow_are_not_equal():
    def function(x, *weights):
        before = [x]
        for index, weight in enumerate(weights):
            before.append(layer(before[-1], weight, before[0] if index % 2 else before[-1]))
        return (before[-1],)

    with inductor.fake_mode():
        fakes = [torch.empty(4, 8), *(torch.empty(8, 8) for _ in range(LAYERS))]
        repeat = find_repeat(inductor.decompose(function, fakes).graph)
    assert repeat is None or repeat.count < LAYERS


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(LAYERS))

    def forward(self, x, target):
        for linear, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.tanh(linear(norm(x)))
        return nn.functional.mse_loss(x, target)


@pytest.mark.timeout(600)  # a C++ compiler at work
def test_a_deep_model_trains_as_interpreted(monkeypatch):
    x, target = torch.randn(4, 8), torch.randn(4, 8)
    losses = {}
    for level in ("interpret", "native"):
        monkeypatch.setenv("POPTORCH_CODEGEN", level)
        torch.manual_seed(0)
        model = Deep()
        executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        losses[level] = torch.stack([executor(x, target) for _ in range(5)])
    assert_close_sums(losses["native"], losses["interpret"], terms=8, steps=5 * LAYERS)
    code = executor.executable.code
    assert code.step is None  # the update is not part of it
    program = code.micro_batch.program
    called = [step.kernel for step in program.kernel_calls]
    assert len(called) > LAYERS
    assert len(set(called)) == len(program.kernels) < LAYERS, "a kernel for every layer"
