"""The passes that make a program native, with kernels that go from operation to operation instead of C++.

What every pass does shows in the program after it; that all of them together change nothing shows in the results.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

import poptorch
from closeness import assert_close_sums
from poptorch.executable.host_code import Code
from poptorch.executable.host_program import Factors, HandOver, Prepared, RandomKey
from poptorch.executable.host_verify import verify
from poptorch.host.factoring import in_factors
from poptorch.host.interpret.code import generate, generate_flat
from poptorch.host.native import compilation, inductor, outlining
from poptorch.host.native.draft import Draft
from poptorch.host.native.inductor import Target
from poptorch.host.native.outlining import LEAST_REPEATS
from poptorch.host.native.passes import KERNEL_PASSES, make, make_update
from poptorch.program.outputs import OutputKind
from poptorch.program.program import Program, Role
from poptorch.runtime.values.factored import Product
from poptorch.runtime.values.random_source import RandomSource
from poptorch.runtime.values.weights import Weights

TARGET = Target(1)


def as_it_is(graph_module: fx.GraphModule, fakes: Any, target: Target, **_: Any) -> inductor.Compiled:
    """Instead of Inductor: the graph, operation by operation."""
    replay = inductor.replay(fx.GraphModule(graph_module, graph_module.graph))

    def run(flat: list[torch.Tensor]) -> list[torch.Tensor]:
        operands = list(flat)
        flat.clear()
        return list(replay(*operands))

    values = graph_module.graph.output_node().args[0]
    strides = [tuple(v.meta["val"].stride()) if isinstance(v, fx.Node) else None for v in values]  # type: ignore[union-attr]
    return inductor.Compiled(run, strides)


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    monkeypatch.setattr(compilation, "compile_graph", as_it_is)
    monkeypatch.setattr(outlining, "compile_graph", as_it_is)


class Layers(nn.Module):
    def __init__(self, depth: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(depth)))
        self.dropout, self.last = nn.Dropout(dropout), nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            self.calls.add_(1)
        y = self.last(self.dropout(self.layers(x)))
        return (y, poptorch.identity_loss(y.square().mean(), reduction="none")) if self.training else y


def compiled(model: nn.Module, *, training: bool = True, accumulation: int = 1) -> Any:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    options = poptorch.Options()
    x = torch.ones(2 * accumulation, 4)
    if training:
        options.Training.gradientAccumulation(accumulation)
        executor: Any = poptorch.trainingModel(
            model, options, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        )
    else:
        executor = poptorch.inferenceModel(model.eval(), options)
    executor.compile(x)
    return executor


def arguments(model: nn.Module, program: Program) -> list[Any]:
    """Everything that a micro-batch is given."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def of(role: Role) -> list[torch.Tensor]:
        return [state[port.name].detach().clone() for port in program.ports_of(role)]

    torch.manual_seed(1)
    inputs = [torch.randn(port.shape) for port in program.ports_of(Role.INPUT)]
    constants = [program.constants[port.name] for port in program.ports_of(Role.CONSTANT)]
    return [Weights(of(Role.PARAMETER)), of(Role.BUFFER), constants, inputs, (), RandomSource(5)]


def both(model: nn.Module, program: Program, native: Code, *more: Any, **ways: Any) -> tuple[list[Any], list[Any]]:
    """What the interpreter computes, and what the native program does."""
    with torch.no_grad():
        expected, found = arguments(model, program), arguments(model, program)
        return (
            [*generate(program, **ways).run(*expected, *more), *expected[1]],
            [*native.run(*found, *more), *found[1]],
        )


def values(found: list[Any]) -> list[torch.Tensor]:
    return [v.value() if isinstance(v, Product) else v for v in found]


def made(draft: Draft) -> tuple[Code, dict[str, str]]:
    """The code, and the program after each pass that applied."""
    written: dict[str, str] = {}
    code = make(draft, written.__setitem__)
    assert code.program is not None
    verify(code.program)
    return code, written


def test_every_pass_has_a_name_and_a_reason_and_is_there_once() -> None:
    names = [step.name for step in KERNEL_PASSES]
    assert len(set(names)) == len(names)
    assert names[0] == "whole"
    assert names[-1] == "kernels"
    assert all(step.reason for step in KERNEL_PASSES)


def test_forward_and_backward() -> None:
    model = Layers()
    program = compiled(model).program
    code, written = made(Draft.of(program, TARGET))
    assert list(written) == ["whole", "random keys", "forward and backward", "kernels"]
    assert written["whole"].count("= kernel whole(") == 1
    assert "kernel forward(" in written["forward and backward"]
    assert "kernel backward(" in written["forward and backward"]
    assert "may reuse" in written["forward and backward"]
    expected, found = both(model, program, code)
    assert len(found) == len(expected) > 5
    assert_close_sums(found, expected, terms=8, steps=4)


def test_random_keys() -> None:
    model = Layers(dropout=0.5)
    program = compiled(model).program
    code, written = made(Draft.of(program, TARGET))
    assert "random key" not in written["whole"]
    assert " = random key" in written["random keys"]
    assert sum(isinstance(step, RandomKey) for step in code.program.steps) == 1  # type: ignore[union-attr]
    expected, found = both(model, program, code)
    assert_close_sums(found, expected, terms=8, steps=4)


class Printing(Layers):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(poptorch.ipu_print_tensor(x, "x"))


def test_tokens() -> None:
    model = Printing()
    program = compiled(model, training=False).program
    code, written = made(Draft.of(program, TARGET))
    assert "token" in written["tokens"]
    expected, found = both(model, program, code)
    assert_close_sums(found, expected, terms=8, steps=4)
    assert len(code.program.results) == 1  # type: ignore[union-attr]


def test_factors_and_hand_overs() -> None:
    model = Layers()
    executor = compiled(model)
    whole = executor.program
    program, products = in_factors(whole)
    assert products
    at = list(whole.positions_of(OutputKind.GRADIENT))
    buckets = [at[4:], at[:2], at[2:4]]
    code, written = made(Draft.of(program, TARGET, products=products, buckets=buckets))
    assert written["factors"].count(" = factors ") == len(products)
    assert written["hand-overs"].count("hand over bucket") == 3
    steps = code.program.steps  # type: ignore[union-attr]
    assert sum(isinstance(step, HandOver) for step in steps) == 3
    assert sum(isinstance(step, Factors) for step in steps) == len(products)
    assert len(code.program.kernel_calls) > 2, "nothing leaves before the end"  # type: ignore[union-attr]
    given: dict[str, list[Any]] = {"expected": [], "found": []}
    with torch.no_grad():
        results = []
        for name, run in (("expected", generate(program, buckets=buckets, products=products).run), ("found", code.run)):
            hand = given[name].append
            results.append(run(*arguments(model, program), lambda b, v, hand=hand: hand((b, values(v)))))
    assert [bucket for bucket, _ in given["found"]] == [0, 1, 2]
    for (_, one), (_, other) in zip(given["expected"], given["found"], strict=True):
        assert_close_sums(other, one, terms=8, steps=4)
    assert_close_sums(list(results[1]), list(results[0]), terms=8, steps=4)


def test_frozen_weights() -> None:
    model = Layers().eval()
    program = compiled(model, training=False).program
    code, written = made(Draft.of(program, TARGET))
    assert "prepared by preparation(" in written["frozen weights"]
    assert sum(isinstance(step, Prepared) for step in code.program.steps) == 1  # type: ignore[union-attr]
    expected, found = both(model, program, code)
    assert_close_sums(found, expected, terms=8, steps=4)


def test_own_inputs() -> None:
    model = Layers()
    poptorch.BeginBlock(model.last, ipu_id=1)
    executor = compiled(model, accumulation=4)
    for stage in executor.plan.stages:
        program = stage.program
        code, written = made(Draft.of(program, TARGET, is_stage=True))
        assert "(given away)" in written["own inputs"]
        given = {port.index: torch.randn(port.shape) for port in program.ports_of(Role.INPUT)}
        results = []
        with torch.no_grad():
            for run in (generate(program).run, code.run):
                weights, buffers, constants, _, scale, random = arguments(model, program)
                results.append(run(weights, buffers, constants, [v.clone() for v in given.values()], scale, random))
        assert_close_sums(list(results[1]), list(results[0]), terms=8, steps=4)


def test_equal_layers_are_calls_of_one_kernel() -> None:
    model = Layers(depth=LEAST_REPEATS + 3)
    program = compiled(model).program
    code, _ = made(Draft.of(program, TARGET))
    calls = [step.kernel for step in code.program.kernel_calls]  # type: ignore[union-attr]
    assert max(map(calls.count, calls)) >= LEAST_REPEATS
    expected, found = both(model, program, code)
    assert_close_sums(found, expected, terms=8, steps=4 * LEAST_REPEATS)


def test_the_update_joins_the_backward_pass() -> None:
    model = Layers()
    executor = compiled(model)
    program, update = executor.program, executor.executable.update
    code, written = made(Draft.of(program, TARGET, update=update))
    assert "and the update" in written["forward and backward"]
    assert "gradient" not in written["kernels"].partition("return")[2]
    weights, buffers, constants, inputs, scale, random = arguments(model, program)
    state = [torch.zeros(p.shape) for p in map(dict(model.named_parameters()).get, update.owners)]  # type: ignore[union-attr]
    hyper = [t.clone() for t in executor.session.engine.updater.step_arguments()[len(state) :]]
    other = [t.clone() for t in weights]
    with torch.no_grad():
        outputs = code.run(weights, buffers, constants, inputs, scale, random, [*state, *hyper])
        reference = arguments(model, program)
        reference[3] = inputs
        expected = generate(program).run(*reference)
        at = program.positions_of(OutputKind.GRADIENT)
        order = [program.gradients.index(name) for name in update.names]
        gradients = [expected[at.start + i] for i in order]
        ports = [p.name for p in program.ports_of(Role.PARAMETER)]
        moved = [other[ports.index(name)] for name in update.names]
        flat = generate_flat(update.graph_module, "update", update.numerics)
        flat.run(random, *moved, *gradients, *(torch.zeros_like(s) for s in state), *hyper)
    assert len(outputs) == len(program.outputs) - len(program.gradients)
    assert_close_sums(list(weights), other, terms=8, steps=6)


def test_the_update_alone() -> None:
    model = Layers()
    executor = compiled(model, accumulation=2)
    update = executor.executable.update
    written: dict[str, str] = {}
    code = make_update(update, TARGET, written.__setitem__)
    assert "= operands" in written["update"]
    placeholders = update.graph_module.graph.find_nodes(op="placeholder")
    torch.manual_seed(3)
    given = [torch.rand(n.meta["val"].shape, dtype=torch.float64).to(n.meta["val"].dtype) for n in placeholders]
    one, two = [t.clone() for t in given], [t.clone() for t in given]
    with torch.no_grad():
        generate_flat(update.graph_module, "update", update.numerics).run(RandomSource(1), *one)
        code.run(RandomSource(1), *two)
    assert_close_sums(two, one, terms=4, steps=4)
