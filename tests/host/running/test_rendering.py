"""Two ways to run a host program: straight-line Python and the driver do the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import poptorch
from poptorch.executable.host_program import (
    Apply,
    Argument,
    Constant,
    Factors,
    HandOver,
    HostProgram,
    Kernel,
    KernelCall,
    Operation,
    Prepared,
    RandomKey,
    Value,
)
from poptorch.host.running import rendering
from poptorch.host.running.driver import driven
from poptorch.host.running.rendering import Naming, code_of, render
from poptorch.runtime.values.factored import Product
from poptorch.runtime.values.random_source import RandomSource
from poptorch.runtime.values.weights import Weights

Way = Callable[[HostProgram], Callable[..., Any]]
WAYS: list[Way] = [lambda program: render(program).run, driven]
both = pytest.mark.parametrize("way", WAYS, ids=["rendered", "driven"])


def add(operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """A kernel: the sum, and the first operand."""
    first, *rest = operands
    operands.clear()
    return [sum(rest, first), first]


GROUPS = tuple(Argument(name) for name in ("parameters", "buffers", "constants", "inputs", "loss_scale", "random"))


def program(steps: Any, results: tuple[int | None, ...], count: int, **arguments: tuple[int, ...]) -> HostProgram:
    groups = [Argument(a.name, arguments.get(a.name, ())) for a in GROUPS]
    groups += [Argument(name, values) for name, values in arguments.items() if name not in {a.name for a in GROUPS}]
    names = tuple(f"v{i}" for i in range(count))
    return HostProgram(
        "micro_batch", tuple(groups), tuple(steps), results, names, {"add": Kernel("add", add)}, {"op_neg": torch.neg}
    )


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values)


@both
def test_kernels_constants_and_results(way: Way) -> None:
    steps = [
        Constant(3, t(10.0)),
        KernelCall("add", (0, 1, 2, 3), (4, 5), frees=(1, 2, 5)),
        KernelCall("add", (4, 0), (6, 7), frees=(7,)),
    ]
    run = way(program(steps, (6, None, 4), 8, parameters=(0,), inputs=(1, 2)))
    found = run([t(1.0)], [], [], [t(2.0), t(3.0)], (), None)
    assert [v if v is None else v.item() for v in found] == [17.0, None, 16.0]


@both
def test_operations_read_nested_arguments(way: Way) -> None:
    steps = [
        Operation(2, Apply("op_neg", (Apply("op_neg", (Value(0),)),))),
        Operation(3, Apply("stack", ([Value(2), Value(1)],), (("dim", 0),)), frees=(2,)),
        Operation(4, Apply("pick", (Value(3), slice(1, None, None), {"scale": Value(1)}))),
    ]
    made = program(steps, (3, 4), 5, parameters=(0,), inputs=(1,))
    made = HostProgram(
        made.name, made.arguments, made.steps, made.results, made.names, {},
        {"op_neg": torch.neg, "stack": torch.stack, "pick": lambda x, part, more: x[part] * more["scale"]},
    )  # fmt: skip
    stacked, picked = way(made)([t(1.0)], [], [], [t(2.0)], (), None)
    assert stacked.tolist() == [[1.0], [2.0]]
    assert picked.tolist() == [[4.0]]


@both
def test_gradients_are_handed_over_in_factors(way: Way) -> None:
    steps = [
        Factors(2, 0, 1, (True, False), frees=(0, 1)),
        HandOver(0, (2,)),
    ]
    run = way(program(steps, (), 3, inputs=(0, 1), hand=()))
    handed: list[Any] = []
    assert list(run([], [], [], [t(1.0), t(2.0)], (), None, lambda *given: handed.append(given))) == []
    ((bucket, (product,)),) = handed
    assert bucket == 0
    assert isinstance(product, Product)
    assert (product.left.item(), product.right.item(), product.transposed) == (1.0, 2.0, (True, False))


@both
def test_the_random_key_is_that_of_the_call(way: Way) -> None:
    run = way(program([RandomKey(0)], (0,), 1))
    assert run([], [], [], [], (), RandomSource(7))[0].item() == 7


@both
def test_values_are_prepared_when_weights_change(way: Way) -> None:
    count = 0

    def prepare(operands: list[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal count
        count += 1
        return [operands[0] * 2 + operands[1]]

    made = program([Prepared("add", (0, 1), (3,)), KernelCall("add", (2, 3), (4, 5))], (4,), 6,
                   parameters=(0,), buffers=(1,), inputs=(2,))  # fmt: skip
    ahead = HostProgram(
        made.name, made.arguments, (Prepared("ahead", (0, 1), (3,)), made.steps[1]), (4,), made.names,
        {**made.kernels, "ahead": Kernel("ahead", prepare)},
    )  # fmt: skip
    run, weights = way(ahead), Weights([t(1.0)])
    assert [run(weights, [t(0.5)], [], [t(x)], (), None)[0].item() for x in (1.0, 2.0)] == [3.5, 4.5]
    assert count == 1
    weights.changed()
    run(weights, [t(0.5)], [], [t(1.0)], (), None)
    assert count == 2
    run([t(1.0)], [t(0.5)], [], [t(1.0)], (), None)
    assert count == 3, "a plain list of weights keeps nothing"


@both
def test_a_kernel_is_the_only_owner_of_what_is_freed(way: Way) -> None:
    alive: list[bool] = []

    def look(operands: list[torch.Tensor]) -> list[torch.Tensor]:
        seen = weakref.ref(operands[0])
        operands.clear()
        gc.collect()
        alive.append(seen() is not None)
        return []

    steps = [KernelCall("add", (0, 0), (1, 2), frees=(2,)), KernelCall("look", (1,), (), frees=(1,))]
    made = program(steps, (), 3, parameters=(0,))
    kernels = {**made.kernels, "look": Kernel("look", look)}
    way(HostProgram(made.name, made.arguments, made.steps, (), made.names, kernels))([t(1.0)], [], [], [], (), None)
    assert alive == [False]


def test_groups_of_values_that_nothing_looks_at_are_passed_on_as_they_come() -> None:
    call = KernelCall("add", (0, 1, 2), (3, 4))
    source = render(program([call], (3, 4), 5, parameters=(0, 1), inputs=(2,))).source
    assert source.splitlines()[1:] == ["    return kernel_0([*parameters, *inputs])"]
    source = render(program([call], (3, 0), 5, parameters=(0, 1), inputs=(2,))).source
    assert source.splitlines()[1] == "    v0, v1, = parameters"


def test_long_programs_are_driven() -> None:
    steps = [KernelCall("add", (i,), (i + 1, 100 + i), frees=(100 + i,)) for i in range(rendering.MANY_KERNELS)]
    long = program(steps, (rendering.MANY_KERNELS,), 200, inputs=(0,))
    code = code_of(long)
    assert code.source.endswith(str(long))
    assert code.run([], [], [], [t(3.0)], (), None)[0].item() == 3.0
    assert code_of(program(steps[:2], (2,), 200, inputs=(0,))).source.startswith("def micro_batch")


def test_names_are_names_of_python_and_differ() -> None:
    naming = Naming(["inputs"])
    for wanted in ("x", "x", "lambda", "inputs", "op_mm_0", "0.weight", "operands"):
        naming.add(wanted)
    assert all(name.isidentifier() for name in naming.names)
    assert len(set(naming.names)) == 7
    assert not {"lambda", "inputs", "op_mm_0", "operands"} & set(naming.names)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.layers(x).square().mean(), reduction="none")


@pytest.mark.parametrize("half", [False, True])
def test_the_driver_runs_what_the_interpreter_renders(monkeypatch: pytest.MonkeyPatch, half: bool) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    model = Model()
    model = model.half() if half else model
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(2, 4).to(torch.float16 if half else torch.float32)
    executor.compile(x)
    code = executor.executable.code.micro_batch
    memory = executor.session.engine.memory
    assert code.program is not None
    inputs = [torch.randn(p.shape).to(p.dtype) for p in code_inputs(executor)]
    with torch.no_grad():
        one, two = (
            run(memory.weights, memory.buffers[0], memory.constants, list(inputs), (), random_of(executor))
            for run in (code.run, driven(code.program))
        )
    assert len(one) == len(two) > 2
    for a, b in zip(one, two, strict=True):
        a, b = (v.value() if isinstance(v, Product) else v for v in (a, b))
        assert torch.equal(a, b)


def code_inputs(executor: Any) -> Any:
    return [p for p in executor.executable.code.program.ports if p.role.value == "input"]


def random_of(executor: Any) -> Any:
    return executor.session.engine.random.of_group(0, 0)


@both
def test_values_may_be_arguments_of_their_own(way: Way) -> None:
    arguments = (Argument("random"), Argument("operands", (0, 1), apart=True))
    steps = (RandomKey(2), KernelCall("add", (0, 1, 2), (3, 4)))
    update = HostProgram("update", arguments, steps, (3,), tuple("abcde"), {"add": Kernel("add", add)})
    assert way(update)(RandomSource(4), t(1.0), t(2.0))[0].item() == 7.0
