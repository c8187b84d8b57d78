"""A program that is not sound is refused, and the error shows where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import poptorch
from poptorch.ambient import Placement
from poptorch.compiler import pipeline
from poptorch.compiler.passes.context import Context
from poptorch.compiler.passes.slots import Division, partition
from poptorch.compiler.pipeline import Pass, lower
from poptorch.compiler.verify import verify
from poptorch.program.opinfo import info_of, set_info
from poptorch.program.program import Program, Role

aten = torch.ops.aten


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.factor = torch.arange(4.0)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(torch.tanh(self.fc(x)) * self.factor, target)


@pytest.fixture
def program() -> Program:
    model = Model()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(torch.ones(2, 4), torch.ones(2, 4))
    return executor.program


def node_of(program: Program, target: object) -> torch.fx.Node:
    return next(n for n in program.operations() if n.target is target)


def constants(program: Program) -> list[str]:
    return [p.name for p in program.ports_of(Role.CONSTANT)]


def a_port_too_few(program: Program) -> None:
    program.ports.pop()


def an_output_too_many(program: Program) -> None:
    program.outputs.append(program.outputs[-1])


def a_loss_that_is_no_result(program: Program) -> None:
    program.loss_result = 7


def ports_mixed_up(program: Program) -> None:
    first, last = program.ports[0], program.ports[-1]
    program.ports[0], program.ports[-1] = last, first


def a_wrong_index(program: Program) -> None:
    program.ports[1] = replace(program.ports[1], index=5)


def outputs_mixed_up(program: Program) -> None:
    program.outputs.reverse()


def a_constant_without_value(program: Program) -> None:
    program.constants.pop(constants(program)[0])


def a_constant_of_another_shape(program: Program) -> None:
    program.constants[constants(program)[0]] = torch.ones(7)


def use_before_definition(program: Program) -> None:
    program.output_node.prev.prev.append(node_of(program, aten.addmm.default))


def a_value_of_unknown_type(program: Program) -> None:
    del node_of(program, aten.tanh.default).meta["val"]


def a_port_of_another_shape(program: Program) -> None:
    program.ports[0] = replace(program.ports[0], shape=(9, 9))


def an_operation_without_a_place(program: Program) -> None:
    del node_of(program, aten.tanh.default).meta["poptorch"]


FAULTS = [
    (a_port_too_few, r"\d placeholders have \d ports"),
    (an_output_too_many, r"\d values are returned as \d outputs"),
    (a_loss_that_is_no_result, r"the loss is result 7 of 1"),
    (ports_mixed_up, r"comes after ports of a later role"),
    (a_wrong_index, r"'fc\.bias' is parameter 1, but its index is 5"),
    (outputs_mixed_up, r"the result 'output 0' comes after the gradient"),
    (a_constant_without_value, r"the constant '.*' has no value"),
    (a_constant_of_another_shape, r"the constant '.*' is \[7\] of torch.float32, unlike its port"),
    (use_before_definition, r"%tanh uses %addmm before its definition"),
    (a_value_of_unknown_type, r"the type of %tanh is not known"),
    (a_port_of_another_shape, r"is \[4, 4\], but its port is \[9, 9\]"),
    (an_operation_without_a_place, r"%tanh has no annotations"),
]


@pytest.mark.parametrize(("seed", "phrase"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_each_fault_is_found(program: Program, seed: Callable[[Program], None], phrase: str) -> None:
    verify(program)
    seed(program)
    with pytest.raises(poptorch.Error, match=phrase):
        verify(program)


def test_the_error_shows_the_neighbourhood(program: Program) -> None:
    tanh = node_of(program, aten.tanh.default)
    an_operation_without_a_place(program)
    with pytest.raises(poptorch.Error) as caught:
        verify(program, after="simplify")
    lines = str(caught.value).splitlines()
    assert "The program is broken after the pass 'simplify'" in lines[0]
    operands, users, around = (lines.index(title) for title in ("operands:", "users:", "around it:"))
    assert "%addmm" in lines[operands + 1]
    assert users - operands == 1 + len(tanh.all_input_nodes)
    assert around - users == 1 + len(tanh.users)
    assert "aten::mul.Tensor" in "\n".join(lines[users:around])
    (marked,) = [line for line in lines[around + 1 :] if line.startswith(">")]
    assert "aten::tanh(%addmm)" in marked
    assert len(lines) - around - 1 == 7


class Staged(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        poptorch.Block.start("0", ipu_id=0)
        x = torch.tanh(x)
        poptorch.Block.start("1", ipu_id=1)
        return torch.relu(x)


@pytest.fixture
def staged() -> Program:
    executor = poptorch.inferenceModel(Staged(), poptorch.Options().deviceIterations(2))
    executor.compile(torch.ones(2, 4))
    return executor.program


def test_slots_follow_the_data(staged: Program) -> None:
    found = partition(staged, Division.STAGES)
    verify(staged, found, staged=True)
    tanh, relu = node_of(staged, aten.tanh.default), node_of(staged, aten.relu.default)
    found.slots[tanh], found.slots[relu] = 1, 0
    with pytest.raises(poptorch.Error, match=r"%relu runs in slot 0, before %tanh in slot 1"):
        verify(staged, found)
    del found.slots[relu]
    with pytest.raises(poptorch.Error, match=r"%relu has no slot"):
        verify(staged, found)


def test_stages_never_decrease_along_the_data(staged: Program) -> None:
    found = partition(staged, Division.STAGES)
    tanh = node_of(staged, aten.tanh.default)
    set_info(tanh, info_of(tanh).but(placement=Placement(stage=5, ipu=1)))
    verify(staged, found)  # other strategies may go back
    with pytest.raises(poptorch.Error, match=r"%relu of stage 1 uses %tanh of stage 5"):
        verify(staged, found, staged=True)


def broken(program: Program, context: Context) -> str:
    program.outputs.reverse()
    return "made a mess"


@pytest.mark.parametrize(("text", "found"), [("1", True), ("0", False)])
def test_the_variable_switches_it(program: Program, monkeypatch, text: str, found: bool) -> None:
    monkeypatch.setenv("POPTORCH_VERIFY", text)
    passes = [Pass("break it", broken, "to see who notices")]
    if found:
        with pytest.raises(poptorch.Error, match="broken after the pass 'break it'"):
            lower(program, Context(), passes)
    else:
        lower(program, Context(), passes)


def test_tests_verify_every_pass_of_every_program(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(pipeline, "verify", lambda program, *args, after, **kwargs: seen.append(after))
    poptorch.inferenceModel(nn.ReLU())(torch.ones(1))
    assert seen == [step.name for step in pipeline.DEVICE_PASSES]
