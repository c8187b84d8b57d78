"""Operators that exchange values between replicas, against one joint computation in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import poptorch
from poptorch import ambient
from poptorch.compiler.request import capture_settings
from poptorch.ipu_model.architecture import architecture
from poptorch.ipu_model.costing import cost_of

FEATURES, ROWS = 3, 2
Exchange = Callable[[torch.Tensor], torch.Tensor]


def call(name: str, x: torch.Tensor, template: Any = None, **attributes: Any) -> torch.Tensor:
    templates = [x if template is None else template]
    (y,) = poptorch.custom_op([x], f"Replicated{name}", "ai.graphcore", 1, templates, attributes or None)
    return y


class Net(nn.Module):
    """A layer, an exchange, a layer and a loss that is different in each replica."""

    def __init__(self, exchange: Exchange, last_ipu: int = 0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.exchange, self.last_ipu = exchange, last_ipu

    def forward(self, x: torch.Tensor) -> Any:
        with poptorch.Block("first", ipu_id=0):
            h = self.exchange(torch.tanh(self.first(x)))
        with poptorch.Block("second", ipu_id=self.last_ipu):
            out = self.second(h.reshape(-1, FEATURES))
            return out, poptorch.identity_loss((out * out * x.sum()).sum(), "none")


def options_for(replicas: int, accumulation: int = 1, iterations: int = 1) -> poptorch.Options:
    options = poptorch.Options()
    options.replicationFactor(replicas).deviceIterations(iterations)
    options.Training.gradientAccumulation(accumulation)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    return options


Joint = Callable[[list[torch.Tensor]], list[torch.Tensor]]
"""From the values of all replicas to what each of them gets; gradients are those of this function."""


def eager(net: Net, x: torch.Tensor, joint: Joint, replicas: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs of all micro-batches, and the sum of the gradients."""
    outputs, total = [], torch.zeros(())
    for step in x.split(ROWS * replicas):
        shares = list(step.split(ROWS))
        for share, h in zip(shares, joint([torch.tanh(net.first(s)) for s in shares]), strict=True):
            out = net.second(h.reshape(-1, FEATURES))
            outputs.append(out)
            total = total + (out * out * share.sum()).sum()
    return torch.cat(outputs).detach(), _gradients(total, list(net.parameters()))


def _gradients(total: torch.Tensor, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def own_only(values: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """For each replica all values, of which only its own carry a gradient."""
    return [[v if i == j else v.detach() for j, v in enumerate(values)] for i in range(len(values))]


def padded_parts(total: torch.Tensor, count: int) -> list[torch.Tensor]:
    flat = total.flatten()
    length = -(-flat.numel() // count)
    return list(torch.cat([flat, flat.new_zeros(length * count - flat.numel())]).split(length))


def _own_parts(hs: list[torch.Tensor]) -> list[torch.Tensor]:
    """In the backend each replica gets the gradients of all, side by side."""
    all_parts = [padded_parts(h, len(hs)) for h in hs]
    results = []
    for i in range(len(hs)):
        shared = sum(parts[i] for parts in all_parts)
        results.append(all_parts[i][i].detach() + shared - shared.detach())
    return results


CASES: dict[str, tuple[Exchange, Joint]] = {
    "all-reduce": (lambda h: call("AllReduce", h), lambda hs: [sum(hs)] * len(hs)),
    "mean": (lambda h: call("AllReduce", h, __collectiveOperator=1), lambda hs: [sum(hs) / len(hs)] * len(hs)),
    "local": (lambda h: call("AllReduce", h, __collectiveOperator=8), lambda hs: hs),
    "most": (
        lambda h: call("AllReduce", h, __collectiveOperator=4),
        lambda hs: [torch.stack(hs).amax(0).detach()] * len(hs),
    ),
    "squares": (
        lambda h: call("AllReduce", h, __collectiveOperator=7),
        lambda hs: [sum(h * h for h in hs).detach()] * len(hs),
    ),
    "all-gather": (
        lambda h: call("AllGather", h, torch.empty(4, *h.shape)),
        lambda hs: [torch.cat([h.flatten() for h in mine]) for mine in own_only(hs)],
    ),
    "reduce-scatter": (
        lambda h: call("ReduceScatter", h.repeat(2, 1)),
        lambda hs: padded_parts(sum(h.repeat(2, 1) for h in hs), len(hs)),
    ),
    "scatter of means": (
        lambda h: call("ReduceScatter", h.repeat(2, 1), __collectiveOperator=1),
        lambda hs: padded_parts(sum(h.repeat(2, 1) for h in hs) / len(hs), len(hs)),
    ),
    "own part": (
        lambda h: call("ReduceScatter", h.repeat(2, 1), __collectiveOperator=8),
        lambda hs: _own_parts([h.repeat(2, 1) for h in hs]),
    ),
    "neighbours": (
        lambda h: call("AllReduce", h, __collectiveReplicaGrouping=[4, 1, 2]),
        lambda hs: [hs[0] + hs[1]] * 2 + [hs[2] + hs[3]] * 2,
    ),
    "every second": (
        lambda h: call("AllReduce", h, __collectiveCommGroup=[2, 2]),
        lambda hs: [hs[0] + hs[2], hs[1] + hs[3]] * 2,
    ),
    "two of them": (
        lambda h: call("AllReduce", torch.sin(call("AllReduce", h)), __collectiveCommGroup=[1, 2]),
        lambda hs: [2 * torch.sin(sum(hs))] * 4,
    ),
}


def check(
    exchange: Exchange, joint: Joint, options: poptorch.Options, steps: int, last_ipu: int = 0, replicas: int = 4
) -> None:
    model = Net(exchange, last_ipu)
    before = [p.detach().clone() for p in model.parameters()]
    x = torch.randn(steps * replicas * ROWS, FEATURES, generator=torch.Generator().manual_seed(3))
    expected, gradients = eager(Net(exchange), x, joint, replicas)
    options.outputMode(poptorch.OutputMode.All)
    trainer = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=1.0))
    try:
        out, _ = trainer(x)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        for parameter, old, gradient in zip(model.parameters(), before, gradients, strict=True):
            torch.testing.assert_close(old - parameter.detach(), gradient, rtol=1e-4, atol=1e-4)
    finally:
        trainer.destroy()


@pytest.mark.parametrize("name", CASES)
def test_replicas_exchange_values(name: str) -> None:
    check(*CASES[name], options_for(4), 1)


@pytest.mark.parametrize("name", ["all-reduce", "all-gather", "reduce-scatter"])
def test_in_pipelines_with_accumulation(name: str) -> None:
    options = options_for(4, accumulation=4)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    check(*CASES[name], options, 4, last_ipu=1)


def test_recomputed_activations() -> None:
    options = options_for(4, accumulation=3)
    options._Popart.set("autoRecomputation", 3)
    check(*CASES["all-reduce"], options, 3, last_ipu=1)


def test_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    check(*CASES["two of them"], options_for(4), 1)


def test_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer threads than replicas, which all wait for each other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    check(*CASES["all-gather"], options_for(4, accumulation=2), 2)


class Runs(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def infer(function: Callable[..., Any], *inputs: torch.Tensor, replicas: int = 2, **more: Any) -> Any:
    options = poptorch.Options().replicationFactor(replicas)
    for name, value in more.items():
        getattr(options, name)(value)
    model = poptorch.inferenceModel(Runs(function), options)
    try:
        return model(*inputs)
    finally:
        model.destroy()


def test_one_replica_is_a_group_of_its_own() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    results = infer(lambda v: [call("AllReduce", v), call("AllGather", v), call("ReduceScatter", v)], x, replicas=1)
    torch.testing.assert_close(results[0], x)
    assert results[1].shape == (2, 3)
    assert results[2].tolist() == x.flatten().tolist()


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, [5, 5]),
        (1, [2, 2]),
        (2, [0, 6]),
        (3, [0, 2]),
        (4, [5, 3]),
        (5, [0, 1]),
        (6, [1, 1]),
        (7, [25, 13]),
        (8, None),
    ],
)
def test_operators_on_integers(number: int, expected: list[int] | None) -> None:
    x = torch.tensor([[0, 2], [5, 3]], dtype=torch.int32)
    results = infer(lambda v: call("AllReduce", v, __collectiveOperator=number), x).tolist()
    assert results == (x.tolist() if expected is None else [expected] * 2)


def test_halves_are_added_in_float32() -> None:
    x = torch.tensor([[1.0], [2048.0], [1.0], [1.0]]).half()
    assert infer(lambda v: call("AllReduce", v), x, replicas=4).flatten().tolist() == [2052.0] * 4


def test_the_order_of_calls_counts_not_that_of_threads() -> None:
    def forward(v: torch.Tensor) -> Any:
        for _ in range(4):
            v = call("AllReduce", v) / 2
        return v

    x = torch.arange(10.0).reshape(10, 1)
    result = infer(forward, x, deviceIterations=5).reshape(5, 2)
    assert torch.equal(result, x.reshape(5, 2).mean(1, keepdim=True).expand(5, 2))


def test_in_loops() -> None:
    def forward(v: torch.Tensor) -> Any:
        return poptorch.for_loop(3, lambda t: [call("AllReduce", t)], [v])[0]

    assert infer(forward, torch.tensor([[1.0], [2.0]])).flatten().tolist() == [12.0, 12.0]


def test_a_constant_is_gathered_in_the_program() -> None:
    assert infer(lambda v: v + call("AllReduce", torch.ones(1)), torch.zeros(2, 1)).flatten().tolist() == [2.0, 2.0]


def test_branches_that_differ_between_replicas_are_an_error() -> None:
    def forward(v: torch.Tensor) -> Any:
        return poptorch.cond(v.sum() > 0, lambda t: [call("AllReduce", t)], [v], lambda t: [t], [v])[0]

    assert infer(forward, torch.tensor([[1.0], [2.0]])).flatten().tolist() == [3.0, 3.0]
    with pytest.raises(poptorch.Error, match="did not take part in an exchange between replicas"):
        infer(forward, torch.tensor([[1.0], [-2.0]]))


def test_a_replica_that_fails_ends_the_waiting_of_others() -> None:
    def refuse(v: torch.Tensor) -> torch.Tensor:
        if float(v) < 0:
            raise ValueError("not this one")
        return v

    def forward(v: torch.Tensor) -> Any:
        return call("AllReduce", poptorch.CPU(refuse, "refuse")(v))

    with pytest.raises(ValueError, match="not this one"):
        infer(forward, torch.tensor([[1.0], [-2.0]]))


@pytest.mark.parametrize(
    ("name", "attributes", "phrase"),
    [
        ("AllReduce", {"__collectiveOperator": 9}, "Unsupported operator"),
        ("AllReduce", {"__collectiveReplicaGrouping": [2, 0, 2]}, "must be a positive integer"),
        ("AllGather", {"__collectiveReplicaGrouping": [2, 2]}, "must be a positive integer"),
        ("AllGather", {"__collectiveReplicaGrouping": [2, 1, 4]}, "divisible by the product of the stride"),
        ("AllGather", {"__collectiveReplicaGrouping": [4, 1, 4]}, "4 replicas, but the model has 2"),
        ("AllReduce", {"__collectiveCommGroup": [3, 2]}, "Unknown commGroup type for collective op"),
        ("AllReduce", {"__collectiveCommGroup": [1]}, "Invalid commGroup data for collective op"),
        (
            "ReduceScatter", {"__collectiveCommGroup": [0, 0], "__collectiveReplicaGrouping": [2, 1, 2]},
            "Setting both attributes .* is not allowed",
        ),
    ],
)  # fmt: skip
def test_wrong_groups(name: str, attributes: dict[str, Any], phrase: str) -> None:
    with pytest.raises(poptorch.Error, match=phrase):
        infer(lambda v: call(name, v, **attributes), torch.ones(2, 2))


def estimated_seconds(replicas: int) -> float:
    """What an IPU takes for a large all-reduce."""
    with torch.device("meta"):
        x = torch.empty(1 << 20)
    options = poptorch.Options().replicationFactor(replicas)
    graph = capture(lambda v: call("AllReduce", v, __collectiveReplicaGrouping=[replicas, 1, replicas]), x, options)
    (node,) = (n for n in graph.nodes if n.op == "call_function" and "replicated" in str(n.target))
    chip = architecture("bow")
    cost = cost_of(node, chip)
    assert cost.covered
    return sum(step.duration(chip) for step in cost.steps) / chip.cycles(1.0)


def capture(function: Any, x: torch.Tensor, options: Any) -> Any:
    def run(v: torch.Tensor) -> Any:
        with ambient.capturing(ambient.CaptureContext(settings=capture_settings(options))):
            return function(v)

    return make_fx(run, tracing_mode="fake")(x).graph


def test_the_ipu_model_knows_what_a_ring_costs() -> None:
    bandwidth = architecture("bow").ring_bandwidth
    none, two, four = (estimated_seconds(n) for n in (1, 2, 4))
    assert two - none > 2 * (4 << 20) / 2 / bandwidth
    assert four - none > 2 * (4 << 20) * 3 / 4 / bandwidth > 1.2 * none


# -- operators of the user ---------------------------------------------------------------------------------------------


def _all_to_all(x: torch.Tensor, *, replicas: Any) -> torch.Tensor:
    parts = [everything.chunk(replicas.count)[replicas.number] for everything in replicas.all_gather(x)]
    return torch.cat(parts)


def _sum_forward(x: torch.Tensor, *, backwards: int, replicas: Any) -> torch.Tensor:
    return x.clone() if backwards else sum(replicas.all_gather(x))


def _sum_backward(gradients: Any, inputs: Any, outputs: Any, *, backwards: int, replicas: Any) -> Any:
    return [sum(replicas.all_gather(gradients[0])) if backwards else gradients[0]]


@pytest.fixture
def user_operators() -> None:
    poptorch.registerCustomOp(
        "ReplicatedAllToAll", "ai.graphcore", 1, _all_to_all,
        lambda gradients, inputs, outputs, *, replicas: [_all_to_all(gradients[0], replicas=replicas)], replicas=True,
    )  # fmt: skip
    poptorch.registerCustomOp(
        "ReplicatedAllReduceTP", "ai.graphcore", 1, _sum_forward, _sum_backward, attributes={"backwards": "Int"},
        replicas=True,
    )  # fmt: skip


def _exchanged(hs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.cat([h.repeat(2, 1).chunk(len(hs))[i] for h in hs]) for i in range(len(hs))]


class _IdentityBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *hs: torch.Tensor) -> Any:
        return tuple(sum(hs).clone() for _ in hs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients


def test_operators_of_the_user_communicate(user_operators: None) -> None:
    check(lambda h: call("AllToAll", h.repeat(2, 1)), _exchanged, options_for(4), 1)
    check(
        lambda h: call("AllReduceTP", h, backwards=0), lambda hs: list(_IdentityBackward.apply(*hs)), options_for(4), 1
    )
    reverse = lambda h: call("AllReduceTP", h, backwards=1)  # noqa: E731
    options = options_for(4, accumulation=4)
    check(reverse, _all_reduced_backward, options, 4, last_ipu=1)


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> str:
    source = Path(__file__).parent / "replica_ops.cpp"
    return poptorch.buildCustomOp("replica_ops", source, request.config.cache.mkdir("custom_ops"))


def turned(x: torch.Tensor, by: int) -> torch.Tensor:
    return poptorch.custom_op([x], "Turn", "tests.replicas", 1, [x], {"by": by})[0]


def test_operators_in_cpp_communicate(library: str) -> None:
    check(lambda h: turned(h, 1), lambda hs: [*hs[1:], hs[0]], options_for(4, accumulation=2), 2)
    check(lambda h: turned(turned(h, 3), 2), lambda hs: [*hs[1:], hs[0]], options_for(4, accumulation=4), 4, last_ipu=1)
    assert infer(lambda x: turned(x, 1), torch.ones(2), replicas=1).tolist() == [1.0, 1.0]


def test_the_failure_of_another_replica_passes_through_cpp(library: str) -> None:
    def refuse(v: torch.Tensor) -> torch.Tensor:
        if float(v) < 0:
            raise ValueError("not this one")
        return v

    with pytest.raises(ValueError, match="not this one"):
        infer(lambda x: turned(poptorch.CPU(refuse, "refuse")(x), 1), torch.tensor([[1.0], [-2.0]]))


def test_sums_have_no_gradient_in_strict_mode() -> None:
    options = options_for(4)
    options.strictCompatibility(True)
    joint = CASES["all-reduce"][1]
    check(CASES["all-reduce"][0], lambda hs: [h.detach() for h in joint(hs)], options, 1)


def _all_reduced_backward(hs: list[torch.Tensor]) -> list[torch.Tensor]:
    total = sum(hs)
    return [h.detach() + total - total.detach() for h in hs]
