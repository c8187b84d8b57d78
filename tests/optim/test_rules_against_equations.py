"""Every optimizer against an independent float64 reference, written from the equations one weight at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import poptorch
from closeness import assert_close_sums, bound_of_sums

STEPS = 20


@dataclass
class Reference:
    """Float64 weights and whatever the equations remember about them."""

    weights: list[Tensor]
    memory: list[dict[str, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = [w.detach().double().clone() for w in self.weights]
        self.memory = [{} for _ in self.weights]

    def recall(self, i: int, name: str) -> Tensor:
        return self.memory[i].get(name, torch.zeros_like(self.weights[i]))


def sgd(ref: Reference, grads: list[Tensor], t: int, *, lr, mm=0.0, dm=0.0, wd=0.0, nesterov=False):
    for i, (w, g) in enumerate(zip(ref.weights, grads, strict=True)):
        v = mm * ref.recall(i, "v") + (1 - dm) * wd * w + (1 - dm) * g
        ref.memory[i]["v"] = v
        ref.weights[i] = w - lr * ((g + wd * w + mm * v) if nesterov else v)


def adam(ref: Reference, grads: list[Tensor], t: int, *, lr, betas=(0.9, 0.999), eps=1e-8, wd=0.0, decoupled=False):
    for i, (w, g) in enumerate(zip(ref.weights, grads, strict=True)):
        x = adam_direction(ref, i, g if decoupled else g + wd * w, t, betas, eps, True)
        ref.weights[i] = w - lr * (x + wd * w if decoupled else x)


def adam_direction(ref: Reference, i: int, g: Tensor, t: int, betas, eps, correct: bool) -> Tensor:
    m = betas[0] * ref.recall(i, "m") + (1 - betas[0]) * g
    v = betas[1] * ref.recall(i, "v") + (1 - betas[1]) * g**2
    ref.memory[i].update(m=m, v=v)
    if correct:
        m, v = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
    return m / (v.sqrt() + eps)


def lamb(ref, grads, t, *, lr, betas=(0.9, 0.999), eps=1e-8, wd=0.01, correct=True, mwn=65500.0):
    for i, (w, g) in enumerate(zip(ref.weights, grads, strict=True)):
        x = adam_direction(ref, i, g, t, betas, eps, correct) + wd * w
        r1, r2 = w.norm().item(), x.norm().item()
        q = 1.0 if 0 in (r1, r2, mwn) else min(r1, mwn) / r2
        ref.weights[i] = w - lr * q * x


def rmsprop(ref, grads, t, *, lr, alpha=0.99, eps=1e-8, wd=0.0, mm=None, centered=False, tf=False):
    for i, (w, g) in enumerate(zip(ref.weights, grads, strict=True)):
        g = g + wd * w
        v1 = ref.memory[i].get("v1", torch.ones_like(w) if tf else torch.zeros_like(w))
        v1 = alpha * v1 + (1 - alpha) * g**2
        v2 = alpha * ref.recall(i, "v2") + (1 - alpha) * g
        ref.memory[i].update(v1=v1, v2=v2)
        q = v1 - v2**2 if centered else v1
        x = g / (q + eps).sqrt() if tf else g / (q.sqrt() + eps)
        if mm is None:
            ref.weights[i] = w - lr * x
            continue
        v3 = mm * ref.recall(i, "v3") + (lr * x if tf else x)
        ref.memory[i]["v3"] = v3
        ref.weights[i] = w - (v3 if tf else lr * v3)


P, T = poptorch.optim, torch.optim
COMBINED = {"use_combined_accum": True}
# name: (class, its arguments, reference, the reference's arguments, whether weight_decay is added in half the runs)
VARIANTS: dict[str, tuple[Any, dict, Any, dict]] = {
    "SGD": (P.SGD, {"lr": 0.05}, sgd, {"lr": 0.05}),
    "SGD dampened without momentum": (P.SGD, {"lr": 0.05, "dampening": 0.3}, sgd, {"lr": 0.05, "dm": 0.3}),
    "SGD momentum": (P.SGD, {"lr": 0.05, "momentum": 0.9}, sgd, {"lr": 0.05, "mm": 0.9}),
    "SGD variable zero momentum": (P.SGD, {"lr": 0.05, "momentum": 0.0}, sgd, {"lr": 0.05}),
    "SGD momentum, dampening": (
        P.SGD,
        {"lr": 0.05, "momentum": 0.9, "dampening": 0.2},
        sgd,
        {"lr": 0.05, "mm": 0.9, "dm": 0.2},
    ),
    "SGD Nesterov": (
        P.SGD,
        {"lr": 0.05, "momentum": 0.9, "nesterov": True},
        sgd,
        {"lr": 0.05, "mm": 0.9, "nesterov": True},
    ),
    "SGD combined": (P.SGD, {"lr": 0.05, **COMBINED}, sgd, {"lr": 0.05}),
    "SGD combined momentum": (
        P.SGD,
        {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "velocity_scaling": 128.1, **COMBINED},
        sgd,
        {"lr": 0.05, "mm": 0.9, "dm": 0.1},
    ),
    "SGD combined Nesterov": (
        P.SGD,
        {"lr": 0.05, "momentum": 0.9, "nesterov": True, **COMBINED},
        sgd,
        {"lr": 0.05, "mm": 0.9, "nesterov": True},
    ),
    "native SGD momentum": (T.SGD, {"lr": 0.05, "momentum": 0.9}, sgd, {"lr": 0.05, "mm": 0.9}),
    "Adam": (P.Adam, {"lr": 0.01}, adam, {"lr": 0.01}),
    "Adam all variable": (
        P.Adam,
        {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6},
        adam,
        {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6},
    ),
    "native Adam": (T.Adam, {"lr": 0.01}, adam, {"lr": 0.01}),
    "AdamW": (P.AdamW, {"lr": 0.01}, adam, {"lr": 0.01, "decoupled": True, "wd": 0.01}),
    "AdamW no bias": (
        P.AdamW,
        {"lr": 0.01, "bias_correction": False},
        adam,
        {"lr": 0.01, "decoupled": True, "wd": 0.01},
    ),
    "AdamW all variable": (
        P.AdamW,
        {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6},
        adam,
        {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "decoupled": True, "wd": 0.01},
    ),
    "native AdamW": (T.AdamW, {"lr": 0.01}, adam, {"lr": 0.01, "decoupled": True, "wd": 0.01}),
    "RMSprop": (P.RMSprop, {"lr": 0.01}, rmsprop, {"lr": 0.01}),
    "RMSprop momentum": (P.RMSprop, {"lr": 0.01, "momentum": 0.8}, rmsprop, {"lr": 0.01, "mm": 0.8}),
    "RMSprop centred": (
        P.RMSprop,
        {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "centered": True},
        rmsprop,
        {"lr": 0.01, "alpha": 0.9, "mm": 0.5, "centered": True},
    ),
    "RMSprop TF": (P.RMSprop, {"lr": 0.01, "use_tf_variant": True}, rmsprop, {"lr": 0.01, "tf": True}),
    "RMSprop TF momentum centred": (
        P.RMSprop,
        {"lr": 0.01, "momentum": 0.8, "eps": 1e-4, "centered": True, "use_tf_variant": True},
        rmsprop,
        {"lr": 0.01, "mm": 0.8, "eps": 1e-4, "centered": True, "tf": True},
    ),
    "native RMSprop": (T.RMSprop, {"lr": 0.01}, rmsprop, {"lr": 0.01}),
    "LAMB": (P.LAMB, {"lr": 0.01}, lamb, {"lr": 0.01}),
    "LAMB no bias": (P.LAMB, {"lr": 0.01, "bias_correction": False}, lamb, {"lr": 0.01, "correct": False}),
    "LAMB capped": (P.LAMB, {"lr": 0.01, "max_weight_norm": 1.5}, lamb, {"lr": 0.01, "mwn": 1.5}),
    "LAMB no ratio": (P.LAMB, {"lr": 0.01, "max_weight_norm": 0.0}, lamb, {"lr": 0.01, "mwn": 0.0}),
}

MEAN, SUM = poptorch.ReductionType.Mean, poptorch.ReductionType.Sum
POST, RUNNING = poptorch.MeanReductionStrategy.Post, poptorch.MeanReductionStrategy.Running
REDUCTIONS = {
    "one": (1, 1, MEAN, POST),
    "4 mean post": (4, 1, MEAN, POST),
    "4 mean running": (4, 1, MEAN, RUNNING),
    "4 sum": (4, 1, SUM, POST),
    "2 replicas mean": (1, 2, MEAN, POST),
    "3x2 mean post": (3, 2, MEAN, POST),
    "3x2 mean running": (3, 2, MEAN, RUNNING),
    "3x2 sum": (3, 2, SUM, POST),
}


def make_options(micro_batches, replicas, reduction, strategy):
    options = poptorch.Options().replicationFactor(replicas)
    options.Training.gradientAccumulation(micro_batches)
    options.Training.accumulationAndReplicationReductionType(reduction)
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    return options


def relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Over all weights together: a single one may pass close to zero, where its own relative error means nothing."""
    difference = torch.cat([(f.double() - e).flatten() for f, e in zip(found, expected, strict=True)])
    return float(difference.norm() / torch.cat([e.flatten() for e in expected]).norm())


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize(
    ("reduction", "scaling"),
    [*((name, 3.7) for name in REDUCTIONS), ("one", None), ("4 mean post", None)],  # None: constant, not scaled
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_twenty_steps(variant, reduction, scaling, decay, weights, gradients, update_only):
    kind, arguments, equations, symbols = VARIANTS[variant]
    micro_batches, replicas, how, _ = REDUCTIONS[reduction]
    arguments, symbols = dict(arguments), dict(symbols)
    if decay:
        arguments["weight_decay"] = symbols["wd"] = decay
    ref = Reference(weights)
    optimizer = kind(weights, **arguments)
    if scaling is not None:
        if kind.__module__.startswith("poptorch"):
            optimizer.variable_attrs.markAsVariable("loss_scaling")
        optimizer.loss_scaling = scaling
    program = update_only(optimizer, make_options(*REDUCTIONS[reduction]))
    divisor = micro_batches * replicas if how == MEAN else 1
    for step in range(1, STEPS + 1):
        program.step(lambda k, r, step=step: gradients(step, k, r))
        everything = [gradients(step, k, r) for k in range(micro_batches) for r in range(replicas)]
        equations(ref, [sum(g.double() for g in gs) / divisor for gs in zip(*everything, strict=True)], step, **symbols)
    assert relative_error(program.weights, ref.weights) <= bound_of_sums(torch.ones(()), terms=1, steps=STEPS)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("native")])
@pytest.mark.parametrize("extra", [{}, {"weight_decay": 0.05}, {"maximize": True}])
def test_native_optimizers_equal_torch(variant, extra, weights, gradients, update_only, clone):
    kind, arguments, _, _ = VARIANTS[variant]
    theirs = clone(weights)
    program = update_only(kind(weights, **arguments, **extra))
    torch_optimizer = kind(theirs, **arguments, **extra)
    for step in range(10):
        grads = gradients(step, 0, 0)
        program.step(lambda k, r, grads=grads: grads)
        for weight, grad in zip(theirs, grads, strict=True):
            weight.grad = grad.clone()
        torch_optimizer.step()
        assert_close_sums(program.weights, theirs, terms=1, steps=10, scale=1.0)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (T.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (T.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.9}),
        (T.Adam, {"lr": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.1}),
        (P.Adam, {"lr": 0.01, "weight_decay": 0.1}),
        (P.AdamW, {"lr": 0.01}),
        (P.LAMB, {"lr": 0.01}),
        (P.LAMB, {"lr": 0.01, "bias_correction": False, "max_weight_norm": 2.0}),
        (P.RMSprop, {"lr": 0.01}),
        (P.SGD, {"lr": 0.01, "momentum": 0.5}),
    ],
)
def test_device_equals_own_cpu_step(kind, arguments, weights, gradients, update_only, clone):
    on_cpu = clone(weights)
    program, optimizer = update_only(kind(weights, **arguments)), kind(on_cpu, **arguments)
    for step in range(10):
        grads = gradients(step, 0, 0)
        program.step(lambda k, r, grads=grads: grads)
        for weight, grad in zip(on_cpu, grads, strict=True):
            weight.grad = grad.clone()
        optimizer.step()
    assert_close_sums(program.weights, on_cpu, terms=12, steps=10, scale=1.0)


def test_adamw_fused_and_composed_forms_agree(weights, gradients, update_only, clone):
    # variable betas keep torch's fused kernel from being used
    copies = clone(weights)
    fused = update_only(P.AdamW(weights, lr=0.01))
    composed = update_only(P.AdamW(copies, lr=0.01, betas=(0.9, 0.999), eps=1e-8))
    for step in range(STEPS):
        for program in (fused, composed):
            program.step(lambda k, r, step=step: gradients(step, k, r))
    assert_close_sums(fused.weights, composed.weights, terms=1, steps=STEPS, scale=1.0)


def test_weights_in_any_memory_layout(gradients, update_only, clone):
    # torch's fused kernel walks memory linearly: a transposed weight must not go there
    straight = [torch.nn.Parameter(torch.randn(4, 3))]
    turned = [torch.nn.Parameter(straight[0].detach().t().contiguous().t())]
    assert not turned[0].is_contiguous()
    one, other = update_only(P.Adam(straight, lr=0.1)), update_only(P.Adam(turned, lr=0.1))
    for step in range(5):
        grads = gradients(step, 0, 0)[:1]
        for program in (one, other):
            program.step(lambda k, r, grads=grads: grads)
    assert_close_sums(one.weights, other.weights, terms=1, steps=5, scale=1.0)


def test_combined_momentum_changes_one_step_late(weights, gradients, update_only):
    optimizer = P.SGD(weights, lr=0.1, momentum=0.9, use_combined_accum=True)
    program = update_only(optimizer)
    program.step(lambda k, r: gradients(0, k, r))
    before, velocity = [w.clone() for w in program.weights], [g.double() for g in gradients(0, 0, 0)]
    optimizer.param_groups[0]["momentum"] = 0.5
    program.spec = poptorch.optim.spec.describe(optimizer, None)
    program.step(lambda k, r: gradients(1, k, r))
    for w, v, b, g in zip(program.weights, velocity, before, gradients(1, 0, 0), strict=True):
        assert_close_sums(w, (b.double() - 0.1 * (0.9 * v + g.double())).float(), terms=1, steps=2, scale=1.0)


def test_zero_variable_learning_rate_freezes_bit_for_bit(weights, gradients, update_only):
    for kind in (P.SGD, P.Adam, P.AdamW, P.RMSprop, P.LAMB):
        program = update_only(kind(weights, lr=0.0))
        before = [w.clone() for w in program.weights]
        for step in range(5):
            program.step(lambda k, r, step=step: gradients(step, k, r))
        assert all(torch.equal(a, b) for a, b in zip(before, program.weights, strict=True)), kind


def test_lamb_leaves_the_ratio_at_one_for_zero_weights(update_only):
    weight = torch.nn.Parameter(torch.zeros(3))
    program = update_only(P.LAMB([weight], lr=0.5, weight_decay=0.0))
    program.step(lambda k, r: [torch.tensor([1.0, -1.0, 0.0])])
    assert_close_sums(program.weights[0], torch.tensor([-0.5, 0.5, 0.0]), terms=4)
    assert not math.isnan(float(program.weights[0].sum()))
