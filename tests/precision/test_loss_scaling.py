"""Loss scaling, manual and automatic, and the reductions of gradients in both types."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # the name everybody uses

import poptorch
from closeness import assert_close_sums

STATE = "lossScaleUpdateFactor"


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, target):
        with poptorch.Block(ipu_id=0):
            hidden = torch.relu(self.first(x))
        with poptorch.Block(ipu_id=self.last_ipu):
            y = self.second(hidden)
            return y, F.mse_loss(y, target)

    last_ipu = 0


class TwoIpus(Small):
    last_ipu = 1


OPTIMIZERS = {
    "SGD": lambda p, **k: poptorch.optim.SGD(p, lr=0.01, use_combined_accum=False, **k),
    "Adam": lambda p, **k: poptorch.optim.Adam(p, lr=0.001, **k),
    "AdamW": lambda p, **k: poptorch.optim.AdamW(p, lr=0.001, **k),
    "RMSprop": lambda p, **k: poptorch.optim.RMSprop(p, lr=0.001, **k),
    "LAMB": lambda p, **k: poptorch.optim.LAMB(p, lr=0.001, **k),
}


def automatic(model: nn.Module, options: poptorch.Options | None = None, kind: str = "SGD", **attributes):
    options = options or poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    optimizer = OPTIMIZERS[kind](model.parameters(), **attributes)
    return poptorch.trainingModel(model, options, optimizer), optimizer


def factor(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.state_dict()["ipu_state"][STATE])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_factor_doubles_while_gradients_are_small(kind: str) -> None:
    model, optimizer = automatic(Small().half(), kind=kind, loss_scaling=2.0)
    x = torch.ones(2, 4).half()
    for expected in (2.0, 4.0, 8.0):
        model(x, torch.zeros(2, 4).half())
        assert factor(optimizer) == expected


@pytest.mark.parametrize("scaling", [1.0, 2.0])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_loss_scale_of_a_call_can_be_anchored(kind: str, scaling: float) -> None:
    options = poptorch.Options()
    options.anchorTensor("scale", "finalLossScale")
    model, optimizer = automatic(Small().half(), options, kind, loss_scaling=scaling)
    x = torch.ones(2, 4).half()
    model.compile(x, x)
    assert "finalLossScale" in model.getTensorNames()
    for _ in range(3):
        before = factor(optimizer)
        model(x, x)
        assert model.getAnchoredTensor("scale").item() == scaling * before


def test_the_anchored_loss_scale_follows_each_step_of_a_call() -> None:
    options = poptorch.Options().deviceIterations(3)
    options.anchorTensor("scale", "finalLossScale", poptorch.OutputMode.All)
    options.Training.gradientAccumulation(3)
    model, _ = automatic(TwoIpus().half(), options, loss_scaling=2.0)
    model(torch.ones(9, 4).half(), torch.zeros(9, 4).half())
    assert model.getAnchoredTensor("scale").tolist() == [2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 8.0, 8.0, 8.0]


def test_the_factor_halves_at_the_edge_and_the_weights_are_updated_all_the_same() -> None:
    class Known(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, dtype=torch.float16))

        def forward(self, x):
            return poptorch.identity_loss((self.weight * x).sum(), reduction="none")

    model, optimizer = automatic(Known(), loss_scaling=1.0)
    for size, expected in ((8000.0, 2.0), (8000.0, 1.0), (8188.0, 0.5), (8188.0, 1.0), (4000.0, 2.0)):
        before = model.weight.detach().clone()
        model(torch.full((4,), size).half())
        assert factor(optimizer) == expected
        change = before.float() - model.weight.detach().float()
        torch.testing.assert_close(change, torch.full((4,), 0.01 * size), rtol=1e-2, atol=0.3)


def run(module: Small, rows: int, options: poptorch.Options, steps: int = 3, **attributes) -> list[torch.Tensor]:
    model, optimizer = automatic(module.half(), options, **attributes)
    torch.manual_seed(1)
    for _ in range(steps):
        model(torch.randn(rows, 4).half(), torch.randn(rows, 4).half())
    assert factor(optimizer) == 2.0**steps
    return [p.detach().float() for p in module.parameters()]


def test_all_strategies_scale_alike() -> None:
    def options(accumulation: int, replicas: int = 1) -> poptorch.Options:
        chosen = poptorch.Options().replicationFactor(replicas)
        chosen.Training.gradientAccumulation(accumulation)
        return chosen

    plain = run(Small(), 8, options(4))
    pipelined = run(TwoIpus(), 8, options(4))
    sharded = run(TwoIpus(), 8, options(4).setExecutionStrategy(poptorch.ShardedExecution()))
    replicated = run(Small(), 8, options(2, replicas=2))
    for others in (pipelined, sharded, replicated):
        for ours, theirs in zip(others, plain, strict=True):
            assert_close_sums(ours, theirs, terms=1, steps=3, dtype=torch.float16)


def test_scaling_does_not_change_the_update() -> None:
    x, target = torch.randn(4, 4).half(), torch.randn(4, 4).half()
    weights = []
    for scaling, auto in ((1.0, False), (64.0, False), (1.0, True)):
        module = Small().half()
        options = poptorch.Options()
        options.Training.setAutomaticLossScaling(auto)
        optimizer = OPTIMIZERS["SGD"](module.parameters(), loss_scaling=scaling)
        model = poptorch.trainingModel(module, options, optimizer)
        for _ in range(4):
            model(x, target)
        weights.append(module.first.weight.detach().float())
    for scaled in weights[1:]:
        assert_close_sums(scaled, weights[0], terms=1, steps=4, dtype=torch.float16)


def test_scaling_rescues_small_gradients() -> None:
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, dtype=torch.float16))

        def forward(self, x):
            y = self.weight * x  # the gradient of x*1e-4*1e-4 is below the smallest float16
            return poptorch.identity_loss((y * 1e-4 * 1e-4).sum(), reduction="none")

    def moved(scaling: float) -> float:
        module = Tiny()
        optimizer = OPTIMIZERS["SGD"](module.parameters(), loss_scaling=scaling)
        optimizer.param_groups[0]["lr"] = 1e4
        poptorch.trainingModel(module, optimizer=optimizer)(torch.ones(4).half())
        return float(module.weight.detach().abs().max())

    assert moved(1.0) == 0.0
    assert moved(4096.0) == pytest.approx(1e-4, rel=0.02)


def test_the_factor_is_saved_and_loaded() -> None:
    first, optimizer = automatic(Small().half())
    x, target = torch.ones(2, 4).half(), torch.zeros(2, 4).half()
    for _ in range(3):
        first(x, target)
    state = optimizer.state_dict()
    assert float(state["ipu_state"][STATE]) == 8.0
    first.destroy()
    second, other = automatic(Small().half())
    other.load_state_dict(state)
    second(x, target)
    assert factor(other) == 16.0


def test_the_update_period() -> None:
    options = poptorch.Options()
    options._Popart.set("automaticLossScalingSettings.updatePeriod", 2)
    model, optimizer = automatic(Small().half(), options)
    x, target = torch.ones(2, 4).half(), torch.zeros(2, 4).half()
    found = []
    for _ in range(4):
        model(x, target)
        found.append(factor(optimizer))
    assert found == [1.0, 2.0, 2.0, 4.0]


def test_several_updates_in_one_call() -> None:
    model, optimizer = automatic(Small().half(), poptorch.Options().deviceIterations(5))
    model(torch.ones(10, 4).half(), torch.zeros(10, 4).half())
    assert factor(optimizer) == 32.0


def test_no_float16_gradient_is_an_error() -> None:
    model, _ = automatic(Small())
    with pytest.raises(poptorch.Error, match="No tracked gradient tensors of type fp16 were found"):
        model(torch.ones(2, 4), torch.zeros(2, 4))


def test_inference_has_nothing_to_scale() -> None:
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    with pytest.raises(poptorch.Error, match="only supported for training"):
        poptorch.inferenceModel(nn.ReLU(), options)(torch.ones(2))


REDUCTIONS = [
    (poptorch.ReductionType.Sum, poptorch.MeanReductionStrategy.Post),
    (poptorch.ReductionType.Mean, poptorch.MeanReductionStrategy.Post),
    (poptorch.ReductionType.Mean, poptorch.MeanReductionStrategy.Running),
]


@pytest.mark.parametrize(("reduction", "strategy"), REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("accumulator", [torch.float16, torch.float32])
@pytest.mark.parametrize(("accumulation", "replicas"), [(4, 1), (1, 2), (2, 2)])
def test_reductions(reduction, strategy, dtype, accumulator, accumulation, replicas) -> None:
    class Known(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, dtype=dtype))

        def forward(self, x):
            return poptorch.identity_loss((self.weight * x).sum(), reduction="sum")

    module = Known()
    options = poptorch.Options().replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    options.Training.accumulationAndReplicationReductionType(reduction)
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    optimizer = poptorch.optim.SGD(
        module.parameters(), lr=1.0, loss_scaling=16.0, use_combined_accum=False, accum_type=accumulator
    )
    count = accumulation * replicas
    x = torch.arange(1.0, 3 * count + 1).reshape(count, 3).to(dtype)
    poptorch.trainingModel(module, options, optimizer)(x)
    expected = x.float().sum(0) if reduction == poptorch.ReductionType.Sum else x.float().mean(0)
    assert_close_sums(-module.weight.detach().float(), expected, terms=1, dtype=torch.float16)


def test_a_running_mean_does_not_overflow_where_the_sum_would() -> None:
    class Known(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, dtype=torch.float16))

        def forward(self, x):
            return poptorch.identity_loss((self.weight * x).sum(), reduction="none")

    module = Known()
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    optimizer = poptorch.optim.AdamW(module.parameters(), lr=0.5, accum_type=torch.float16)
    model = poptorch.trainingModel(module, options, optimizer)
    assert model.options.Training.meanAccumulationAndReplicationReductionStrategy == (
        poptorch.MeanReductionStrategy.Running
    )
    model(torch.full((8,), 30000.0).half().reshape(4, 2))
    assert module.weight.detach().isfinite().all()
    assert module.weight.detach().abs().min() > 0


class _Scaled(nn.Module):
    """The last factor is a parameter without dimensions, with a gradient as large as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return poptorch.identity_loss(self.factor * x.sum(), reduction="none")


@pytest.mark.parametrize(("gradient", "expected"), [(8000.0, 2.0), (9000.0, 0.5)])
def test_gradients_without_dimensions_are_watched(gradient: float, expected: float) -> None:
    model, optimizer = automatic(_Scaled().half(), loss_scaling=1.0)
    model(torch.tensor([gradient]).half())
    assert factor(optimizer) == expected


class _Normalised(nn.Module):
    """Each normalisation has several gradients, which one operation computes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 2), nn.GroupNorm(2, 4), nn.LayerNorm(2)
        )

    def forward(self, x):
        return poptorch.identity_loss(self.layers(x).square(), reduction="mean")


def test_one_operation_with_several_gradients() -> None:
    model, optimizer = automatic(_Normalised().half(), loss_scaling=1.0)
    for expected in (2.0, 4.0):
        model(torch.randn(2, 1, 4, 4).half())
        assert factor(optimizer) == expected
