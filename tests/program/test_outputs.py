"""What the outputs of a program are: typed, grouped by kind, in one order."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import poptorch
from poptorch.host import factoring
from poptorch.program.fingerprint import program_digest
from poptorch.program.outputs import Output, OutputKind, positions_of
from poptorch.program.program import Program


def tiny(count: int = 3) -> Program:
    """A program that returns nothing yet, with some values to return."""
    graph = fx.Graph()
    for index in range(count):
        graph.call_function(torch.ops.aten.ones.default, ([index + 1],))
    graph.output(())
    return Program(fx.GraphModule(nn.Module(), graph), [], [], {}, training=True)


def test_outputs_are_grouped_by_kind_and_keep_their_order_within_it() -> None:
    program = tiny(4)
    first, second, third, fourth = program.operations()
    program.set_outputs(
        [
            (Output(OutputKind.FACTOR, "factor"), first),
            (Output(OutputKind.GRADIENT, "w"), second),
            (Output(OutputKind.RESULT, "b"), third),
            (Output(OutputKind.RESULT, "a"), fourth),
        ]
    )
    assert program.output_values() == [third, fourth, second, first]
    assert (program.results, program.gradients, program.anchors) == (["b", "a"], ["w"], [])
    assert program.values_of(OutputKind.GRADIENT) == [second]
    assert [program.positions_of(kind) for kind in (OutputKind.RESULT, OutputKind.FACTOR)] == [range(2), range(3, 4)]
    assert len(program.positions_of(OutputKind.COUNT)) == 0


def test_the_loss_is_counted_among_the_results() -> None:
    program = tiny(2)
    send, loss = program.operations()
    program.set_outputs([(Output(OutputKind.SEND, "edge"), send), (Output(OutputKind.RESULT, "loss"), loss)])
    program.loss_result = 0
    assert program.loss is loss
    assert f"return loss = %{loss.name}  (loss)" in str(program)
    assert str(program).count("(loss)") == 1


def test_two_programs_with_outputs_of_other_kinds_are_not_the_same() -> None:
    digests = set()
    for kind in (OutputKind.RESULT, OutputKind.ANCHOR, OutputKind.COUNT, OutputKind.SEND):
        program = tiny(1)
        program.set_outputs([(Output(kind, "value"), node) for node in program.operations()])
        digests.add(program_digest(program))
    assert len(digests) == 4


@pytest.mark.parametrize("kind", OutputKind)
def test_no_outputs_are_nowhere(kind: OutputKind) -> None:
    assert len(positions_of([], kind)) == 0


class Training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            poptorch.Block.start(str(index), ipu_id=index)
            x = torch.tanh(layer(x))
        return poptorch.identity_loss(x.sum(), reduction="none")


def compiled(**anchors: str) -> poptorch.PoplarExecutor:
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    for short, long in anchors.items():
        options.anchorTensor(short, long)
    executor = poptorch.trainingModel(Training(), options)
    executor.compile(torch.ones(4, 4))
    return executor


def kinds(program: Program) -> list[str]:
    return [output.kind.value for output in program.outputs]


def test_the_outputs_of_a_model_and_of_its_stages() -> None:
    executor = compiled(seen="Tanh:0")
    assert kinds(executor.program) == ["result", "gradient", "gradient", "anchor"]
    stages = [stage.description for stage in executor.executable.code.stages]
    assert [sorted(set(kinds(p.program))) for p in stages] == [
        ["anchor", "send"], ["result", "send"], ["gradient", "send"], ["gradient"]
    ]  # fmt: skip
    for stage in stages:
        assert len(stage.sends) == len(stage.program.values_of(OutputKind.SEND))
        assert len(stage.results) == len(stage.program.results)


def test_right_factors_are_outputs_of_a_kind_of_their_own() -> None:
    program = compiled().program
    whole = kinds(program)
    factored, _ = factoring.in_factors(program)
    assert kinds(factored) == [*whole, "factor", "factor"]
    assert factored.gradients == program.gradients
    assert [o.name for o in factored.outputs_of(OutputKind.FACTOR)] == [f"factor of {g}" for g in program.gradients]
