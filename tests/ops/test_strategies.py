"""Every operation in every execution strategy, in inference and in training, against plain PyTorch.

Each operation stands on both IPUs of a two-stage model, behind one layer and before another. Beside it is written what
it means in PyTorch's own terms. A model of all operations together goes through every strategy; each operation alone
goes through three of them, so that a failure has a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums
from poptorch import MatMulSerializationMode as Mode
from poptorch.executor import level_change
from poptorch.ops.custom.call import CUSTOM_OP, CUSTOM_OP_GRADIENT
from poptorch.program.opinfo import info_of

Function = Callable[["Layers", torch.Tensor], torch.Tensor]
SIZE, ROWS = 4, 2
"""Features, and rows of a micro-batch."""

LAYERS = 4
"""Sums that follow one another: a layer and an operation on each IPU."""


@dataclass(frozen=True)
class Case:
    """An operation on (ROWS, SIZE) values, and its meaning."""

    device: Function
    meaning: Function


class Layers(nn.Module):
    """Weights that operations may use."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(SIZE, SIZE)
        self.square = nn.Parameter(torch.randn(SIZE, SIZE) / 2)
        self.first, self.second = nn.Conv1d(1, 1, 3, padding=1), nn.Conv1d(1, 1, 3, padding=1)


class TwoIpus(nn.Module):
    """On two IPUs, unless ``last_ipu`` is 0."""

    def __init__(self, function: Function, last_ipu: int = 1) -> None:
        super().__init__()
        self.function, self.last_ipu = function, last_ipu
        self.one, self.two = Layers(1), Layers(2)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        with poptorch.Block("first", ipu_id=0):
            y = self.function(self.one, torch.tanh(self.one.linear(x)))
        with poptorch.Block("second", ipu_id=self.last_ipu):
            z = self.function(self.two, torch.tanh(self.two.linear(y)))
            return z if target is None else poptorch.identity_loss((z - target).square(), "mean")


def itself(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    return v


def named(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    with poptorch.NameScope("scope"), poptorch.Attribute(__outline={"layer": "dense"}):
        return v.sin()


def checkpointed(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    a, b = poptorch.recomputationCheckpoint(v.sin(), v.cos())
    return a * b


def convolved_together(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    with poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial):
        a, b = layers.first(v.unsqueeze(1)), layers.second(v.unsqueeze(1).cos())
    return (a * b).squeeze(1)


def convolved(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    return (layers.first(v.unsqueeze(1)) * layers.second(v.unsqueeze(1).cos())).squeeze(1)


def nested_loops(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    def outer(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        (a,) = poptorch.for_loop(2, lambda t: torch.tanh(t @ layers.square), [a])
        return [a, b + a]

    return poptorch.for_loop(3, outer, [v, v])[1]


def nested_loops_in_python(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    total = v
    for _ in range(3):
        for _ in range(2):
            v = torch.tanh(v @ layers.square)
        total = total + v
    return total


def branch(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    (result,) = poptorch.cond(
        v.sum() > 0, lambda a: a @ layers.square, [v], lambda a: poptorch.for_loop(2, torch.sin, [a])[0] * v, [v]
    )
    return result


def branch_in_python(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    return v @ layers.square if v.sum() > 0 else v.sin().sin() * v


def start_of(v: torch.Tensor) -> torch.Tensor:
    """A place that the values decide on."""
    return (v.sum() > 0).to(torch.int32).reshape(1)


def updated(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    return poptorch.dynamic_update(v, v[:, :2].sin(), 1, start_of(v), 2)


def updated_in_python(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    start = int(start_of(v))
    return torch.cat([v[:, :start], v[:, :2].sin(), v[:, start + 2 :]], 1)


def decoded(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    log_probs = v.detach().log_softmax(-1).unsqueeze(1)  # two time steps, one sequence
    probability, lengths, _ = poptorch.ctc_beam_search_decoder(log_probs, torch.tensor([ROWS]), beam_width=9)
    return v * probability.sum() + lengths.sum()


def decoded_by_hand(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    p = v.detach().log_softmax(-1).exp()
    paths: dict[tuple[int, ...], torch.Tensor] = {}
    for a in range(SIZE):
        for b in range(SIZE):
            path = tuple(c for c in ([a] if a == b else [a, b]) if c)
            paths[path] = paths.get(path, torch.zeros(())) + p[0, a] * p[1, b]
    best = max(paths, key=lambda path: float(paths[path]))
    return v * paths[best].log() + len(best)


def ctc_loss(layers: Layers, v: torch.Tensor) -> torch.Tensor:
    log_probs = v.log_softmax(-1).unsqueeze(1)
    return v + F.ctc_loss(log_probs, torch.tensor([[1]]), torch.tensor([ROWS]), torch.tensor([1]))


HOST = poptorch.CPU(lambda v: torch.from_numpy(v.numpy().cumsum(1)), "strategies")


def custom(name: str, domain: str = "com.acme", version: int = 1, **attributes: Any) -> Callable[..., torch.Tensor]:
    def call(*inputs: torch.Tensor) -> torch.Tensor:
        templates = list(inputs) if name == "Cube" else [inputs[0]]
        results = poptorch.custom_op(list(inputs), name, domain, version, templates, attributes or None)
        return sum(results[1:], results[0])

    return call


@pytest.fixture(scope="module", autouse=True)
def _operators(libraries: dict[str, str]) -> None:
    for version, factor in ((1, 2.0), (3, 3.0)):
        poptorch.registerCustomOp(
            "Times",
            "strategies",
            version,
            forward=lambda x, *, by=1.0, factor=factor: x * factor * by,
            gradient=lambda g, inputs, outputs, *, by=1.0, factor=factor: [g[0] * factor * by],
            attributes={"by": "Float"},
            cycles=lambda x, **_: 7 * x.numel(),
        )


CASES = {
    "ipu_print_tensor": Case(lambda s, v: poptorch.ipu_print_tensor(v, "v", summarise_threshold=2), itself),
    "nop": Case(lambda s, v: poptorch.nop(v), itself),
    "identity_loss mean": Case(lambda s, v: v * poptorch.identity_loss(v, "mean"), lambda s, v: v * v.mean()),
    "identity_loss sum": Case(lambda s, v: v * poptorch.identity_loss(v, "sum"), lambda s, v: v * v.sum()),
    "identity_loss none": Case(lambda s, v: v * poptorch.identity_loss(v, "none"), lambda s, v: v * v),
    "recomputationCheckpoint": Case(checkpointed, lambda s, v: v.sin() * v.cos()),
    **{
        f"serializedMatMul {mode.name}": Case(
            lambda s, v, mode=mode: poptorch.serializedMatMul(v, s.square, mode, 2), lambda s, v: v @ s.square
        )
        for mode in (Mode.InputChannels, Mode.ReducingDim, Mode.OutputChannels)
    },
    "set_available_memory": Case(
        lambda s, v: poptorch.set_available_memory(v @ s.square, 0.3), lambda s, v: v @ s.square
    ),
    "MultiConv": Case(convolved_together, convolved),
    "NameScope and Attribute": Case(named, lambda s, v: v.sin()),
    "for_loop": Case(nested_loops, nested_loops_in_python),
    "cond": Case(branch, branch_in_python),
    "dynamic_slice": Case(
        lambda s, v: v * poptorch.dynamic_slice(v, 1, start_of(v) + 1, 2, 1).sum(1, keepdim=True),
        lambda s, v: v * v.roll(-1 - int(start_of(v)), 1)[:, :2].sum(1, keepdim=True),
    ),
    "dynamic_update": Case(updated, updated_in_python),
    "fps": Case(
        lambda s, v: v * v[poptorch.fps(v.view(SIZE, ROWS), [0, SIZE], 0.25).long()],
        lambda s, v: v * v[:1],
    ),
    "nearest": Case(
        lambda s, v: v + v[poptorch.nearest(v, v.flip(0)).long()],
        lambda s, v: v + v[torch.cdist(v, v.flip(0)).argmin(1)],
    ),
    "ctc_beam_search_decoder": Case(decoded, decoded_by_hand),
    "CTCLoss": Case(ctc_loss, ctc_loss),
    "CPU": Case(lambda s, v: v * HOST(v), lambda s, v: v * v.detach().cumsum(1)),
    "C++ with two outputs": Case(lambda s, v: custom("Cube")(v, v.sin()) / 4, lambda s, v: (2 * v**3 + v.sin()) / 4),
    "C++ with an attribute": Case(lambda s, v: custom("LeakyRelu", alpha=0.25)(v), lambda s, v: F.leaky_relu(v, 0.25)),
    "C++ in a loop": Case(
        lambda s, v: poptorch.for_loop(2, custom("LeakyRelu", alpha=0.5), [v])[0], lambda s, v: F.leaky_relu(v, 0.25)
    ),
    "an earlier version": Case(lambda s, v: custom("Times", "strategies", 2, by=0.25)(v), lambda s, v: v * 0.5),
    "a later version": Case(lambda s, v: custom("Times", "strategies", 9)(v), lambda s, v: v * 3),
    "FastGatherLastDim": Case(
        lambda s, v: v * custom("FastGatherLastDim", "poptorch.custom_ops")(v, torch.tensor([[3, 0, 1, 1]] * ROWS)),
        lambda s, v: v * v.gather(1, torch.tensor([[3, 0, 1, 1]] * ROWS)),
    ),
}


def all_of(functions: list[Function]) -> Function:
    def function(layers: Layers, v: torch.Tensor) -> torch.Tensor:
        return sum((f(layers, v.roll(i, 1)) for i, f in enumerate(functions)), v) / len(functions)

    return function


EVERYTHING = Case(*(all_of([getattr(case, kind) for case in CASES.values()]) for kind in ("device", "meaning")))


@dataclass(frozen=True)
class Setting:
    """An execution strategy; without one, everything is on one IPU."""

    strategy: Callable[[], Any] | None = None
    replicas: int = 1

    def model(self, function: Function) -> TwoIpus:
        return TwoIpus(function, last_ipu=1 if self.strategy else 0)

    def options(self) -> poptorch.Options:
        options = poptorch.Options().replicationFactor(self.replicas)
        return options.setExecutionStrategy(self.strategy()) if self.strategy else options


SETTINGS = {
    "one IPU": Setting(),
    "sharded": Setting(lambda: poptorch.ShardedExecution("first", "second")),
    "pipelined": Setting(lambda: poptorch.PipelinedExecution("first", "second")),
    "serial phases": Setting(lambda: poptorch.SerialPhasedExecution("first", "second")),
    "parallel phases": Setting(lambda: poptorch.ParallelPhasedExecution("first", "second")),
    "replicated": Setting(replicas=2),
    "pipelined replicas": Setting(lambda: poptorch.PipelinedExecution("first", "second"), replicas=2),
}


def rows(count: int) -> torch.Tensor:
    return torch.randn(count * ROWS, SIZE, generator=torch.Generator().manual_seed(5))


def infer(case: Case, setting: Setting) -> None:
    x = rows(4)
    options = setting.options().deviceIterations(4 // setting.replicas)
    model = poptorch.inferenceModel(setting.model(case.device), options)
    found = model(x)
    model.destroy()
    reference = setting.model(case.meaning)
    with torch.no_grad():
        expected = torch.cat([reference(part) for part in x.split(ROWS)])
    assert_close_sums(found, expected, terms=SIZE, steps=LAYERS)


def train(case: Case, setting: Setting) -> None:
    micro_batches = 3 * setting.replicas
    x, target = rows(micro_batches), rows(micro_batches).cos()
    options = setting.options()
    options.Training.gradientAccumulation(3)
    options.outputMode(poptorch.OutputMode.All)
    module = setting.model(case.device)
    model = poptorch.trainingModel(module, options, poptorch.optim.SGD(module.parameters(), lr=0.1))
    losses = [model(x, target) for _ in range(2)]
    model.destroy()
    reference = setting.model(case.meaning)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step, found in enumerate(losses, start=1):
        optimizer.zero_grad()
        parts = [reference(a, b) for a, b in zip(x.split(ROWS), target.split(ROWS), strict=True)]
        (sum(parts) / micro_batches).backward()
        optimizer.step()
        expected = torch.stack([part.detach() for part in parts])
        assert_close_sums(found.flatten().sort().values, expected.sort().values, terms=ROWS * SIZE, steps=LAYERS * step)
    ours, theirs = (dict(m.named_parameters()) for m in (module, reference))
    assert_close_sums(ours, theirs, terms=micro_batches * ROWS, steps=LAYERS * len(losses))


WORK = pytest.mark.parametrize("work", [infer, train])


@WORK
@pytest.mark.parametrize("setting", SETTINGS)
def test_all_operations_together(work: Callable[[Case, Setting], None], setting: str) -> None:
    work(EVERYTHING, SETTINGS[setting])


@pytest.mark.slow
@WORK
@pytest.mark.parametrize("setting", ["one IPU", "pipelined", "replicated"])
@pytest.mark.parametrize("name", CASES)
def test_each_operation(work: Callable[[Case, Setting], None], name: str, setting: str) -> None:
    work(CASES[name], SETTINGS[setting])


OPAQUE = ["ipu_print_tensor", "serializedMatMul OutputChannels", "for_loop", "cond", "CPU", "C++ with two outputs"]
"""Operations that native code calls, rather than being made of."""


@pytest.mark.slow
@pytest.mark.timeout(400)  # a C++ compiler at work
@WORK
def test_native_code(work: Callable[[Case, Setting], None], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    real = level_change.native_code
    monkeypatch.setattr(level_change, "native_code", lambda *args: compiled.append(args) or real(*args))
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    cases = [CASES[name] for name in OPAQUE]
    work(Case(all_of([c.device for c in cases]), all_of([c.meaning for c in cases])), SETTINGS["one IPU"])
    assert len(compiled) == 1


def test_the_cycles_of_custom_operators_are_noted_in_the_program() -> None:
    module = TwoIpus(lambda s, v: custom("Cube")(custom("Times", "strategies", 1)(v), v), last_ipu=0)
    model = poptorch.trainingModel(module, optimizer=poptorch.optim.SGD(module.parameters(), lr=0.1))
    model.compile(rows(1), rows(1))
    noted = [
        (node.target, node.args[2], info_of(node).cycles)
        for node in model.program.operations()
        if node.target in (CUSTOM_OP, CUSTOM_OP_GRADIENT)
    ]
    elements = ROWS * SIZE
    times, cube = 7.0 * elements, 4 * elements / (2 * 1472)
    assert noted[:4] == [(CUSTOM_OP, "Times", times), (CUSTOM_OP, "Cube", cube)] * 2
    assert {(target, name) for target, name, _ in noted[4:]} == {(CUSTOM_OP_GRADIENT, n) for n in ("Times", "Cube")}
    model.destroy()
