"""Every operation inside inference and training models."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
import preloaded
from closeness import assert_close_sums
from poptorch import MatMulSerializationMode, MultiConv, OverlapMode

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_op" / "custom_op.py"


class Model(nn.Module):
    """A module around a function of itself and the inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def infer(function: Callable[..., Any], *inputs: torch.Tensor, options: Any = None, **parts: Any) -> Any:
    model = poptorch.inferenceModel(Model(function, **parts), options)
    try:
        return model(*inputs)
    finally:
        model.destroy()


def train(
    function: Callable[..., Any], *inputs: torch.Tensor, steps: int = 3, **parts: Any
) -> tuple[list[Any], nn.Module]:
    """Results of some steps of gradient descent, and the trained model."""
    model = Model(function, **parts)
    trainer = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    results = [trainer(*inputs) for _ in range(steps)]
    trainer.destroy()
    return results, model


def train_natively(
    function: Callable[..., Any], *inputs: torch.Tensor, steps: int = 3, **parts: Any
) -> tuple[list[Any], nn.Module]:
    model = Model(function, **parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(*inputs)
        loss.backward()
        optimizer.step()
        results.append(loss.detach())
    return results, model


def linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(4, 4)


X = torch.linspace(-1, 1, 8).view(2, 4)


def squared(value: torch.Tensor) -> torch.Tensor:
    return poptorch.identity_loss(value.square(), "mean")


LEARNERS: dict[str, Callable[..., torch.Tensor]] = {
    "nop": lambda s, x: squared(poptorch.nop(s.layer(x))),
    "available memory": lambda s, x: squared(poptorch.set_available_memory(s.layer(x), 0.2)),
    "checkpoint": lambda s, x: squared(poptorch.recomputationCheckpoint(s.layer(x))),
    "print": lambda s, x: squared(poptorch.ipu_print_tensor(s.layer(x), "y")),
    "split product": lambda s, x: squared(
        poptorch.serializedMatMul(x, s.layer.weight, MatMulSerializationMode.ReducingDim, 2)
    ),
    "loop": lambda s, x: squared(poptorch.for_loop(3, lambda v: torch.tanh(s.layer(v)), [x])[0]),
    "branch taken": lambda s, x: squared(poptorch.cond(x.sum() < 9, s.layer, [x], lambda v: v * 2, [x])[0]),
    "branch not taken": lambda s, x: squared(
        poptorch.cond(x.sum() > 9, lambda v: v * 2, [x], lambda v: s.layer(v).sin(), [x])[0]
    ),
    "slice": lambda s, x: squared(poptorch.dynamic_slice(s.layer(x), 1, torch.tensor([1]), 2, 1)),
    "update": lambda s, x: squared(poptorch.dynamic_update(x, s.layer(x)[:, :2], 1, torch.tensor([1]), 2)),
    "names": lambda s, x: named(s, x),
}


def named(s: Any, x: torch.Tensor) -> torch.Tensor:
    with poptorch.NameScope("scope"), poptorch.Attribute(__outline={"layer": "dense"}):
        return squared(s.layer(x))


@pytest.mark.parametrize("name", LEARNERS)
def test_training_equals_plain_pytorch(name: str) -> None:
    found, model = train(LEARNERS[name], X, layer=linear())
    expected, reference = train_natively(LEARNERS[name], X, layer=linear())
    assert_close_sums([loss.detach() for loss in found], expected, terms=X.numel(), steps=3)
    assert_close_sums(model.layer.weight, reference.layer.weight, terms=X.numel(), steps=3)


@pytest.mark.parametrize("name", LEARNERS)
def test_inference_equals_plain_pytorch(name: str) -> None:
    with torch.no_grad():
        expected = Model(LEARNERS[name], layer=linear())(X)
    assert_close_sums(infer(LEARNERS[name], X, layer=linear()), expected, terms=X.numel())


# ---- losses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_losses_of_every_reduction_train(reduction: str) -> None:
    def forward(s: Any, x: torch.Tensor) -> Any:
        y = s.layer(x).square()
        value = poptorch.identity_loss(y, reduction)
        return y, value

    results, model = train(forward, X, layer=linear(), steps=1)
    y, value = results[0]
    assert value.shape == (y.shape if reduction == "none" else torch.Size([]))
    assert not torch.equal(model.layer.weight, linear().weight)


def test_several_losses() -> None:
    def two(s: Any, x: torch.Tensor, wrap: bool) -> torch.Tensor:
        first = F.mse_loss(s.layer(x), x)
        total = first + 5 * F.mse_loss(s.layer(x), 2 * x)
        return poptorch.identity_loss(total, "mean") if wrap else total

    with pytest.raises(poptorch.Error, match="Multiple independent losses found in graph"):
        train(lambda s, x: two(s, x, False), X, layer=linear())
    losses, _ = train(lambda s, x: two(s, x, True), X, layer=linear())
    assert losses[-1] < losses[0]
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
        train(lambda s, x: s.layer(x), X, layer=linear())


# ---- printing ----------------------------------------------------------------------------------------------------


def test_prints_appear_when_the_program_runs(capfd: pytest.CaptureFixture[str]) -> None:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(poptorch.ipu_print_tensor(x * s.w, "product"), "sum")

    train(forward, torch.tensor([1.0, 2.0]), steps=1, w=nn.Parameter(torch.ones(2)))
    err = capfd.readouterr().err
    assert "product: (1.000,2.000)\n" in err
    assert "product_gradient: (1.000,1.000)\n" in err


def test_one_print_per_micro_batch(capfd: pytest.CaptureFixture[str]) -> None:
    options = poptorch.Options().deviceIterations(3)
    infer(lambda s, x: poptorch.ipu_print_tensor(x, "row"), torch.arange(3.0), options=options)
    rows = [line for line in capfd.readouterr().err.splitlines() if line.startswith("row: ")]
    assert sorted(rows) == ["row: (0.000)", "row: (1.000)", "row: (2.000)"]


# ---- control flow ------------------------------------------------------------------------------------------------


def test_loops() -> None:
    (y,) = infer(lambda s, x: poptorch.for_loop(10, lambda v: v * 2, [x]), torch.ones(1))
    assert y.item() == 1024
    results = infer(
        lambda s, *v: poptorch.for_loop(5, lambda x, y, z, w: (x * y, y + z, x * w, w + 1), list(v)),
        *(torch.tensor([float(i)]) for i in range(1, 5)),
    )
    x, y, z, w = 1.0, 2.0, 3.0, 4.0
    for _ in range(5):
        x, y, z, w = x * y, y + z, x * w, w + 1
    assert [r.item() for r in results] == [x, y, z, w]


def test_a_long_loop_of_constants() -> None:
    y = infer(lambda s, x: poptorch.for_loop(10_000, lambda v: v + 1, [torch.tensor([0.0])])[0] + x, torch.ones(1))
    assert y.item() == 10_001


def test_a_loop_changes_neither_inputs_nor_buffers() -> None:
    def forward(s: Any, x: torch.Tensor) -> list[torch.Tensor]:
        def body(v: torch.Tensor) -> torch.Tensor:
            v += 1
            v += 1
            return v

        x += 10
        return poptorch.for_loop(3, body, [x])

    x = torch.zeros(2)
    (y,) = infer(forward, x)
    assert y.tolist() == [16.0, 16.0]
    assert x.tolist() == [10.0, 10.0]


def test_a_branch_follows_the_run_time_value() -> None:
    model = poptorch.inferenceModel(
        Model(
            lambda s, c, x: poptorch.cond(c, lambda v: v + s.shift, [x], lambda: x * 2, []),
            shift=nn.Parameter(torch.ones(1)),
        )
    )
    assert model(torch.tensor([True]), torch.ones(1))[0].item() == 2.0
    assert model(torch.tensor([False]), torch.full((1,), 5.0))[0].item() == 10.0
    assert model(torch.tensor([True]), torch.full((1,), 5.0))[0].item() == 6.0
    model.destroy()


def test_random_bodies_repeat_with_the_seed() -> None:
    def forward(s: Any, x: torch.Tensor) -> list[torch.Tensor]:
        return poptorch.for_loop(2, lambda v: F.dropout(v, 0.5, True) + torch.rand(64), [x])

    def run(seed: int) -> list[torch.Tensor]:
        model = poptorch.inferenceModel(Model(forward), poptorch.Options().randomSeed(seed))
        results = [model(torch.ones(64))[0].clone() for _ in range(2)]
        model.destroy()
        return results

    first, second = run(7)
    assert not torch.equal(first, second)
    again, _ = run(7)
    assert torch.equal(first, again)
    assert not torch.equal(first, run(8)[0])


# ---- the others --------------------------------------------------------------------------------------------------


def test_slices_start_at_run_time() -> None:
    model = poptorch.inferenceModel(Model(lambda s, x, i: poptorch.dynamic_slice(x, 0, i, 2, 1)))
    for start in (0, 1, 2, 3):
        found = model(torch.arange(4.0), torch.tensor([start], dtype=torch.int32))
        assert found.tolist() == [start, (start + 1) % 4]
    model.destroy()


def test_decoder() -> None:
    log_probs = torch.full((4, 1, 3), -20.0)
    for step, label in enumerate((1, 1, 0, 2)):
        log_probs[step, 0, label] = math.log(0.9)
    probabilities, lengths, paths = infer(
        lambda s, p, n: poptorch.ctc_beam_search_decoder(p, n, beam_width=5, top_paths=2), log_probs, torch.tensor([4])
    )
    assert paths[0, 0, : lengths[0, 0]].tolist() == [1, 2]
    assert_close_sums(probabilities[0, 0], torch.tensor(4 * math.log(0.9)), terms=3, steps=4, scale=1.0)
    assert lengths.dtype == paths.dtype == torch.int32
    with pytest.raises(poptorch.Error, match="contain NaN"):
        infer(lambda s, p, n: poptorch.ctc_beam_search_decoder(p, n), log_probs * math.nan, torch.tensor([4]))


def test_point_clouds() -> None:
    points = torch.tensor([[0.0], [1.0], [5.0], [2.0]])
    assert infer(lambda s, p: poptorch.fps(p, [0, 4], 0.5), points).tolist() == [0, 2]
    assert infer(lambda s, p, q: poptorch.nearest(p, q), points, points.flip(0)).tolist() == [3, 2, 1, 0]


def test_multi_convolutions_equal_separate_ones() -> None:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        with MultiConv().availableMemoryProportions((0.1, 0.2)):
            y = s.first(x)
            z = s.second(x * 2)
        return y + z

    torch.manual_seed(0)
    parts = {"first": nn.Conv1d(2, 3, 3), "second": nn.Conv1d(2, 3, 3)}
    x = torch.randn(1, 2, 8)
    with torch.no_grad():
        expected = parts["first"](x) + parts["second"](2 * x)
    assert_close_sums(infer(forward, x, **parts), expected, terms=2 * 3)


def test_host_operations_run_once_per_micro_batch_and_in_order() -> None:
    seen: list[float] = []

    def host(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.item())
        return x * 10

    op = poptorch.CPU(host, "order")
    options = poptorch.Options().deviceIterations(4)
    y = infer(lambda s, x: op(x + 1), torch.arange(4.0), options=options)
    assert y.tolist() == [10.0, 20.0, 30.0, 40.0]
    assert seen[-4:] == [1.0, 2.0, 3.0, 4.0]


def test_exceptions_of_host_operations_come_back() -> None:
    class MyError(Exception):
        pass

    def host(x: torch.Tensor) -> torch.Tensor:
        if x.any():
            raise MyError("mine")
        return x

    op = poptorch.CPU(host, "raising in a model")
    with pytest.raises(MyError, match="mine"):
        infer(lambda s, x: op(x), torch.ones(1))


def test_host_modules_need_not_be_registered() -> None:
    layer = linear(3)
    hidden = [poptorch.CPU(layer, "hidden layer")]
    assert_close_sums(infer(lambda s, x: hidden[0](x) * 2, X), layer(X) * 2, terms=4)


def test_overlap_is_an_identity() -> None:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        x = poptorch.set_overlap_for_input(x, OverlapMode.NoOverlap)
        return poptorch.set_overlap_for_output(x * 2, OverlapMode.NoOverlap)

    assert_close_sums(infer(forward, X), X * 2, terms=1)


def test_tensor_numbers() -> None:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        assert poptorch.getIpuTensorId(x) != poptorch.getIpuTensorId(y)
        return y

    infer(forward, X)


# ---- custom operators --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("libraries")
def test_custom_operators_infer_and_train() -> None:
    x = torch.full((1, 8), 2.0)
    sum_, power = infer(
        lambda s, x, b: poptorch.custom_op([x, b], "Cube", "com.acme", 1, example_outputs=[x, x]), x, x * 2
    )
    assert torch.equal(sum_, torch.full((1, 8), 12.0))
    assert torch.equal(power, torch.full((1, 8), 8.0))

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        y = poptorch.custom_op([s.before(x), x], "Cube", "com.acme", 1, example_outputs=[x, x])
        return squared(s.after(y[0]) + y[1])

    losses, model = train(forward, X, before=linear(1), after=linear(2))
    assert losses[-1] < losses[0]
    for part, original in ((model.before, linear(1)), (model.after, linear(2))):
        assert not torch.equal(part.weight, original.weight)


@pytest.mark.usefixtures("libraries")
def test_the_template_may_have_another_shape() -> None:
    (total,) = infer(
        lambda s, x: poptorch.custom_op([x], "ReduceOp", "test.poptorch", 1, [x], {"reduction": "sum"}), torch.ones(3)
    )
    assert (total.shape, total.item()) == (torch.Size([]), 3.0)


@pytest.mark.usefixtures("libraries")
def test_unknown_operators_are_named_when_the_model_is_compiled() -> None:
    with pytest.raises(poptorch.Error, match=r"No class for com.acme.Unknown"):
        infer(lambda s, x: poptorch.custom_op([x], "Unknown", "com.acme", 1, [x]), X)


def test_the_example_runs() -> None:
    done = preloaded.run([EXAMPLE])
    assert done.returncode == 0, done.stderr
    assert "prediction" in done.stdout


# ---- strategies --------------------------------------------------------------------------------------------------


class TwoIpus(nn.Module):
    """A loop on the first IPU; a custom operator and a branch on the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(1), linear(2)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> Any:
        with poptorch.Block("first", ipu_id=0):
            (y,) = poptorch.for_loop(3, lambda v: torch.tanh(self.first(v)), [x])
            y = poptorch.recomputationCheckpoint(y)
        with poptorch.Block("second", ipu_id=1):
            z, _ = poptorch.custom_op([self.second(y), y], "Cube", "com.acme", 1, [y, y])
            (z,) = poptorch.cond(z.sum() < 9, lambda v: v * self.second.bias.mean(), [z], torch.neg, [z])
            if target is None:
                return z
            return poptorch.identity_loss((z - target).square(), "mean")


STRATEGIES = {
    "sharded": poptorch.ShardedExecution,
    "pipelined": poptorch.PipelinedExecution,
    "serial phases": poptorch.SerialPhasedExecution,
}


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_operations_on_two_ipus(strategy: str) -> None:
    x = torch.linspace(0, 3, 32).view(8, 4)

    def options() -> poptorch.Options:
        return poptorch.Options().setExecutionStrategy(STRATEGIES[strategy]("first", "second"))

    def expected(model: TwoIpus, x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(3):
            y = torch.tanh(model.first(y))
        z = model.second(y) ** 3 + y
        return z * model.second.bias.mean() if z.sum() < 9 else -z

    reference = TwoIpus()
    inference = poptorch.inferenceModel(TwoIpus(), options().deviceIterations(4))
    found = inference(x)
    inference.destroy()
    with torch.no_grad():
        wanted = torch.cat([expected(reference, part) for part in x.chunk(4)])
        assert_close_sums(found, wanted, terms=4, steps=4)

    model, training = TwoIpus(), options()
    training.Training.gradientAccumulation(4)
    trainer = poptorch.trainingModel(model, training, poptorch.optim.SGD(model.parameters(), lr=0.1))
    trainer(x, torch.ones(8, 4))
    trainer.destroy()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for part in x.chunk(4):
        ((expected(reference, part) - 1).square().mean() / 4).backward()
    optimizer.step()
    assert_close_sums(list(model.parameters()), list(reference.parameters()), terms=x.numel(), steps=4)


def test_ctc_loss_trains_with_lengths_of_each_run() -> None:
    class Network(nn.Module):
        def __init__(self, reduction: str) -> None:
            super().__init__()
            self.layer, self.loss = linear(), nn.CTCLoss(blank=1, reduction=reduction, zero_infinity=True)

        def forward(self, x, targets, lengths, target_lengths):
            return self.loss(self.layer(x).log_softmax(-1), targets, lengths, target_lengths)

    x, targets = torch.randn(9, 2, 4), torch.tensor([[2, 3, 0], [0, 2, 2]])
    for reduction in ("mean", "sum"):
        model, reference = Network(reduction), Network(reduction)
        trainer = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
        optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for lengths, target_lengths in (
            (torch.tensor([9, 7]), torch.tensor([3, 2])),
            (torch.tensor([6, 8]), torch.tensor([1, 3])),
        ):
            found = trainer(x, targets, lengths, target_lengths)
            optimizer.zero_grad()
            loss = reference(x, targets, lengths, target_lengths)
            loss.backward()
            optimizer.step()
            assert_close_sums(found, loss.detach(), terms=x.numel(), steps=2)
        trainer.destroy()
        assert_close_sums(model.layer.weight, reference.layer.weight, terms=x.numel(), steps=2)


def test_half_inputs_meet_float_weights_in_a_body_as_outside() -> None:
    layer = linear()

    def once(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.layer(x)

    def looped(s: Any, x: torch.Tensor) -> torch.Tensor:
        return poptorch.for_loop(1, s.layer, [x])[0]

    def branched(s: Any, x: torch.Tensor) -> torch.Tensor:
        return poptorch.cond(x.sum() < 9, s.layer, [x], lambda v: v * 2, [x])[0]

    expected = infer(once, X.half(), layer=layer)
    assert expected.dtype == torch.float16
    for forward in (looped, branched):
        found = infer(forward, X.half(), layer=layer)
        assert found.dtype == torch.float16
        assert_close_sums(found, expected, terms=1)  # added up in float32, rounded once


def test_half_inputs_and_float_weights_train_in_a_body() -> None:
    def once(s: Any, x: torch.Tensor) -> torch.Tensor:
        return squared(s.layer(s.layer(x)))

    def looped(s: Any, x: torch.Tensor) -> torch.Tensor:
        return squared(poptorch.for_loop(2, s.layer, [x])[0])

    expected, reference = train(once, X.half(), layer=linear())
    found, model = train(looped, X.half(), layer=linear())
    half = torch.float16  # each step rounds to it
    assert_close_sums(found, expected, terms=1, steps=3, dtype=half)
    assert_close_sums(model.layer.weight, reference.layer.weight, terms=1, steps=3, dtype=half)


def test_values_needed_by_python_in_a_body_are_frozen() -> None:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        def body(v: torch.Tensor) -> torch.Tensor:
            return v * (2 if s.weight.sum().item() > 0 else 3)

        return poptorch.for_loop(2, body, [x])[0]

    with pytest.warns(UserWarning, match="frozen"):
        assert infer(forward, torch.ones(1), weight=nn.Parameter(torch.ones(1))).item() == 4.0
