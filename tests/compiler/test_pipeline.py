"""The list of passes: what each of them does, what it says, and who looks on."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.compiler import lowering, pipeline
from poptorch.compiler.passes.context import Context, PassSettings
from poptorch.compiler.passes.recompute import Recomputation
from poptorch.compiler.passes.slots import Division
from poptorch.compiler.passes.summary import UNCHANGED
from poptorch.compiler.pipeline import DEVICE_PASSES, DIVIDING_PASSES, WHOLE_PASSES, Pass, lower
from poptorch.program.opinfo import info_of
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Program, Role, is_write

aten = torch.ops.aten


class Function(nn.Module):
    """A function of the inputs, with a weight and a buffer."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.plain = torch.ones(4)
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def captured(monkeypatch: pytest.MonkeyPatch, function: Any, training: bool = False, half: bool = False) -> Program:
    """The program before all passes."""
    found: list[Program] = []

    class Enough(Exception):
        pass

    def stop(program: Program, *others: Any) -> None:
        found.append(program)
        raise Enough

    model = Function(function)
    options = poptorch.Options()
    x = torch.ones(2, 4)
    if half:
        model, x = model.half(), x.half()
    if training:
        options.Training.setAutomaticLossScaling(half)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        executor = poptorch.trainingModel(model, options, optimizer)
    else:
        executor = poptorch.inferenceModel(model, options)
    with monkeypatch.context() as patched:
        patched.setattr(lowering, "lower", stop)
        with pytest.raises(Enough):
            executor.compile(x)
    return found[0]


def named(name: str) -> Pass:
    return next(step for step in DEVICE_PASSES if step.name == name)


def until(name: str) -> tuple[Pass, ...]:
    return DEVICE_PASSES[: DEVICE_PASSES.index(named(name))]


def apply(program: Program, name: str, **settings: Any) -> tuple[str, Context]:
    """Run the list up to a pass; what the pass says, and what is known then."""
    context = Context(PassSettings(**settings))
    lower(program, context, until(name))
    before = str(program)
    lower(program, context, [named(name)])
    summary = context.summaries[name]
    assert summary.startswith(UNCHANGED) == (str(program) == before)
    return summary, context


def targets(program: Program) -> list[Any]:
    return [node.target for node in program.operations()]


def test_every_pass_has_a_name_and_a_reason_and_is_there_once() -> None:
    names = [step.name for step in DEVICE_PASSES]
    assert len(set(names)) == len(names) == 15
    assert all(step.reason for step in DEVICE_PASSES)
    assert (*WHOLE_PASSES, *DIVIDING_PASSES) == DEVICE_PASSES


def test_all_passes_run_and_say_so_where_they_have_nothing_to_do(monkeypatch) -> None:
    program = captured(monkeypatch, lambda m, x: torch.relu(x))
    before = str(program)
    context = Context()
    lower(program, context)
    assert [s.partition(",")[0] for s in context.summaries.values()] == [UNCHANGED] * len(DEVICE_PASSES)
    assert str(program) == before
    assert program.log == [f"{name}: {summary}" for name, summary in context.summaries.items()]


@pytest.mark.filterwarnings("ignore:Output expected to be on the IPU")
def test_take_host_results(monkeypatch) -> None:
    program = captured(monkeypatch, lambda m, x: (m.plain, x + 1, torch.ones(3, dtype=torch.int64)))
    with pytest.warns(UserWarning, match="Output expected to be on the IPU"):
        summary, context = apply(program, "take host results")
    assert summary == "2 results are constant"
    assert program.results == ["output 1"]
    assert [(at, value.dtype) for at, value in context.host_results.items()] == [(0, torch.float32), (2, torch.int32)]
    assert torch.equal(context.host_results[0], torch.ones(4))


def test_host_results_that_are_expected_are_no_reason_to_warn(monkeypatch, recwarn) -> None:
    program = captured(monkeypatch, lambda m, x: (m.plain, x + 1))
    recwarn.clear()
    apply(program, "take host results", expects_host_results=True)
    assert not [w for w in recwarn if "expected to be on the IPU" in str(w.message)]


def test_the_loss_is_counted_among_the_results_that_stay(monkeypatch) -> None:
    def forward(m: Function, x: torch.Tensor) -> Any:
        return m.plain, poptorch.identity_loss(m.fc(x).sum(), reduction="none")

    program = captured(monkeypatch, forward, training=True)
    assert program.loss_result == 1
    _, context = apply(program, "take host results", expects_host_results=True)
    assert program.loss_result == 0
    assert list(context.host_results) == [0]


def test_read_hints(monkeypatch) -> None:
    mode = poptorch.OverlapMode.OverlapDeviceIterationLoop

    def forward(m: Function, x: torch.Tensor) -> torch.Tensor:
        y = poptorch.set_available_memory(m.fc(poptorch.set_overlap_for_input(x, mode)), 0.25)
        return poptorch.set_overlap_for_output(poptorch.recomputationCheckpoint(y), mode)

    with monkeypatch.context() as patched:  # the options would have to allow it
        patched.setattr(lowering, "_check_overlap", lambda program, options: None)
        program = captured(patched, forward)
    summary, _ = apply(program, "read hints")
    assert summary == "1 memory budgets, 0 cycle estimates, 3 marks removed"
    assert [info_of(n).available_memory for n in program.operations() if n.target is aten.addmm.default] == [0.25]
    assert [p.overlap for p in program.ports_of(Role.INPUT)] == [mode]
    assert [o.overlap for o in program.outputs] == [mode]
    assert torch.ops.poptorch.recomputation_checkpoint.default in targets(program)
    text = str(program)
    assert "memory=0.25" in text
    assert text.count("(overlap: OverlapDeviceIterationLoop)") == 2


def test_drop_writes_to_constants(monkeypatch) -> None:
    def forward(m: Function, x: torch.Tensor) -> torch.Tensor:
        m.plain.add_(1)
        m.seen.add_(1)
        return x + m.plain + m.seen

    program = captured(monkeypatch, forward)
    assert {p.role for p in program.mutated()} == {Role.BUFFER, Role.CONSTANT}
    assert apply(program, "drop writes to constants")[0] == "dropped 1 writes"
    assert {p.role for p in program.mutated()} == {Role.BUFFER}


def test_simplify(monkeypatch) -> None:
    program = captured(monkeypatch, lambda m, x: x.detach().t().t().clone().add(1))
    assert apply(program, "simplify")[0] == "removed 4 operations"
    assert targets(program) == [aten.add.Tensor]


def test_join_parts(monkeypatch) -> None:
    def forward(m: Function, x: torch.Tensor) -> torch.Tensor:
        y = m.fc(x)
        parts = sum((y[:, i] * (i + 2)).square().sum() for i in range(4))
        return poptorch.identity_loss(parts, reduction="none")

    program = captured(monkeypatch, forward, training=True)
    assert apply(program, "join parts")[0] == "joined 1 sums of parts"
    assert aten.stack.default in targets(program)
    assert aten.select_backward.default not in targets(program)


def test_fold_constants(monkeypatch) -> None:
    program = captured(monkeypatch, lambda m, x: x + m.plain * 3)
    assert apply(program, "fold constants")[0] == "folded 1 values"
    assert targets(program) == [aten.add.Tensor]
    (value,) = program.constants.values()
    assert value.tolist() == [3.0] * 4


def test_record_partials(monkeypatch) -> None:
    def forward(m: Function, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv1d(m.fc(x).unsqueeze(0), torch.ones(2, 2, 1))

    program = captured(monkeypatch, forward)
    summary, _ = apply(program, "record partials", product_partials="half", convolution_partials="float")
    assert summary == "2 operations with chosen partials"
    chosen = {str(n.target): info_of(n).partials for n in program.operations() if info_of(n).partials is not None}
    assert chosen == {"aten.addmm.default": "half", "aten.convolution.default": "float"}
    assert "partials=half" in str(program)


def test_anchor_values(monkeypatch) -> None:
    program = captured(monkeypatch, lambda m, x: torch.relu(x * 2))
    assert apply(program, "anchor values", anchors=("Mul:0", "input"))[0] == "2 anchors"
    assert program.anchors == ["Mul:0", "input"]
    product, given = program.values_of(OutputKind.ANCHOR)
    assert product.target is aten.mul.Tensor
    assert given.op == "placeholder"


def test_watch_gradients(monkeypatch) -> None:
    def forward(m: Function, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(m.fc(x).sum(), reduction="none")

    program = captured(monkeypatch, forward, training=True, half=True)
    summary, context = apply(program, "watch gradients", loss_scaling_edge=1024.0)
    assert context.watch.elements > 0
    assert summary == f"watching {context.watch.elements} gradient elements"
    assert [o.name for o in program.outputs_of(OutputKind.COUNT)] == ["large gradients 0"]
    assert program.anchors == []


def test_own_outputs(monkeypatch) -> None:
    program = captured(monkeypatch, lambda m, x: (x, x.view(-1), (y := x + 1), y))
    assert apply(program, "own outputs")[0] == "3 outputs copied"
    assert targets(program).count(aten.clone.default) == 3


class Pieces(nn.Module):
    """Two parts; the second one writes a buffer that the first one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("carry", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        poptorch.Block.start("0", ipu_id=0)
        x = torch.sigmoid(torch.tanh(self.first(x * self.carry)))
        poptorch.Block.start("1", ipu_id=1)
        y = torch.tanh(self.second(x))
        self.carry.copy_(y.detach().sum(0))
        return poptorch.identity_loss(y.sum(), reduction="none")


def divided(monkeypatch: pytest.MonkeyPatch) -> Program:
    """The program of the model in pieces, as a whole."""
    found: list[Program] = []
    original = pipeline.lower

    def stop(program: Program, context: Context, passes: Any, observers: Any = ()) -> None:
        found.append(program)
        if passes is WHOLE_PASSES:
            original(program, context, passes, observers)
        else:
            raise RuntimeError("enough")

    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    model = Pieces()
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    with monkeypatch.context() as patched:
        patched.setattr(lowering, "lower", stop)
        with pytest.raises(RuntimeError, match="enough"):
            executor.compile(torch.ones(8, 4))
    return found[0]


def dividing(program: Program, **settings: Any) -> Context:
    context = Context(PassSettings(**settings))
    lower(program, context, DIVIDING_PASSES)
    return context


def test_assign_slots(monkeypatch) -> None:
    program = divided(monkeypatch)
    before = str(program)
    context = Context(PassSettings(division=Division.STAGES))
    lower(program, context, [named("assign slots")])
    assert [p.ipu for p in context.divided.parts] == [0, 1]
    assert set(context.divided.slots) == set(program.operations())
    assert str(program) == before


@pytest.mark.parametrize(("mode", "again"), [(Recomputation.OFF, False), (Recomputation.PIPELINE, True)])
def test_recompute(monkeypatch, mode: Recomputation, again: bool) -> None:
    program = divided(monkeypatch)
    dividing(program, division=Division.STAGES, recomputation=mode)
    repeated = {n.target for n in program.operations() if info_of(n).recomputed}
    assert (aten.addmm.default in repeated) is again


def test_one_part_has_nothing_to_compute_again_for_a_pipeline(monkeypatch) -> None:
    def forward(m: Function, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(torch.sigmoid(m.fc(x)).sum(), reduction="none")

    listings = set()
    for mode in (Recomputation.OFF, Recomputation.PIPELINE):
        program = captured(monkeypatch, forward, training=True)
        lower(program, Context(PassSettings(division=Division.STAGES, recomputation=mode)))
        listings.add(str(program))
    assert len(listings) == 1


def test_isolate_writes(monkeypatch) -> None:
    program = divided(monkeypatch)
    (carry,) = [node for node, port in program.placeholders() if port.role is Role.BUFFER]
    context = dividing(program, division=Division.STAGES)
    assert context.summaries["isolate writes"].startswith("copied 1 values that are written")
    assert [(c.name, c.reader, c.writer) for c in context.carried] == [("carry", 0, 1)]
    readers = [user.target for user in carry.users if not is_write(user)]
    assert readers == [aten.clone.default]


def test_a_model_in_one_stage_isolates_nothing(monkeypatch) -> None:
    def forward(m: Function, x: torch.Tensor) -> torch.Tensor:
        loss = (m.fc(x) * m.seen.clone()).sum()
        m.seen.copy_(x[0])
        return poptorch.identity_loss(loss, reduction="none")

    program = captured(monkeypatch, forward, training=True)
    context = Context()
    lower(program, context)
    assert context.summaries["isolate writes"] == UNCHANGED
    assert context.carried == []


def test_observers_hear_of_every_pass_in_order(monkeypatch) -> None:
    heard: list[tuple[Any, ...]] = []

    class Listener:
        def before(self, step: Pass, program: Program) -> None:
            heard.append(("before", step.name))

        def after(self, step: Pass, program: Program, summary: str, seconds: float) -> None:
            assert seconds >= 0.0
            heard.append(("after", step.name, summary))

    program = captured(monkeypatch, lambda m, x: x.detach() + 1)
    context = Context()
    lower(program, context, WHOLE_PASSES, [Listener()])
    expected = []
    for step in WHOLE_PASSES:
        expected += [("before", step.name), ("after", step.name, context.summaries[step.name])]
    assert heard == expected


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PassSettings().division = Division.PHASES  # type: ignore[misc]
