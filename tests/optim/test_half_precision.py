"""Types of weights, accumulators and momenta."""

from __future__ import annotations

import itertools

import pytest
import torch

import poptorch
from closeness import assert_close_sums

P = poptorch.optim
TYPES = (torch.float16, torch.float32)


@pytest.mark.parametrize(("accum", "first", "second"), [*itertools.product(TYPES, repeat=3)])
@pytest.mark.parametrize("kind", [P.Adam, P.AdamW, P.LAMB, P.RMSprop])
def test_every_combination_of_types(kind, accum, first, second, weights, gradients, update_only):
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    optimizer = kind(
        weights,
        lr=0.01,
        accum_type=accum,
        first_order_momentum_accum_type=first,
        second_order_momentum_accum_type=second,
        **({"centered": True} if kind is P.RMSprop else {}),
    )
    assert optimizer.accum_type == accum
    program = update_only(optimizer, options)
    before = [w.clone() for w in program.weights]
    program.step(lambda k, r: gradients(0, k, r))
    assert program.spec.groups[0].accum_type == accum
    state = program.states[0]
    squares, means = ("Accl1", "Accl2") if kind is P.RMSprop else ("Accl2", "Accl1")
    assert {t.dtype for t in state[means]} == {first}
    assert {t.dtype for t in state[squares]} == {second}
    for old, new in zip(before, program.weights, strict=True):
        assert new.dtype == torch.float32
        assert torch.isfinite(new).all()
        assert not torch.equal(old, new)


@pytest.mark.parametrize(("accum", "velocity"), [*itertools.product(TYPES, repeat=2)])
def test_sgd_types(accum, velocity, weights, gradients, update_only):
    program = update_only(P.SGD(weights, lr=0.1, momentum=0.9, accum_type=accum, velocity_accum_type=velocity))
    program.step(lambda k, r: gradients(0, k, r))
    assert program.spec.groups[0].accum_type == accum
    assert {t.dtype for t in program.states[0]["Accl1"]} == {velocity}


def halves():
    return [torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float16))]


@pytest.mark.parametrize(
    "make",
    [
        lambda w: P.SGD(w, lr=0.25),
        lambda w: P.SGD(w, lr=0.25, momentum=0.5),
        lambda w: P.SGD(w, lr=0.25, momentum=0.5, use_combined_accum=True, velocity_scaling=2.0),
    ],
)
def test_half_weights_stay_half(make, update_only):
    program = update_only(make(halves()))
    program.step(lambda k, r: [torch.tensor([1.0, -1.0], dtype=torch.float16)])
    assert program.weights[0].dtype == torch.float16
    assert torch.equal(program.weights[0], torch.tensor([0.75, 2.25], dtype=torch.float16))


def test_combined_state_has_the_type_of_the_weight(update_only):
    program = update_only(P.SGD(halves(), lr=0.25, momentum=0.5, use_combined_accum=True))
    assert program.spec.groups[0].accum_type is None
    assert program.states[0]["Accl"][0].dtype == torch.float16


def test_small_decay_of_half_weights_is_lost_without_velocity(update_only):
    # the decay factor is itself a float16 number: 1 - 1e-4 rounds to one
    program = update_only(P.SGD(halves(), lr=0.01, weight_decay=0.01))
    program.step(lambda k, r: [torch.zeros(2, dtype=torch.float16)])
    assert torch.equal(program.weights[0], halves()[0].detach())


def test_loss_scaling_is_removed_in_float32_from_half_accumulators(update_only):
    # 2^-10 / 2^20 vanishes in float16; with float32 moments it must arrive
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    optimizer = P.Adam(halves(), lr=0.5, accum_type=torch.float16, loss_scaling=2.0**20, eps=1e-12)
    program = update_only(optimizer, options)
    program.step(lambda k, r: [torch.tensor([2.0**-30, -(2.0**-30)], dtype=torch.float32)])
    assert_close_sums(program.states[0]["Accl1"][0], torch.tensor([0.1, -0.1]) * 2.0**-30, terms=2)
    assert_close_sums(program.weights[0], torch.tensor([0.5, 2.5], dtype=torch.float16), terms=1)


def test_half_second_moment_turns_the_default_eps_into_zero(update_only):
    weight = [torch.nn.Parameter(torch.ones(1))]
    optimizer = P.Adam(weight, lr=0.5, second_order_momentum_accum_type=torch.float16)
    program = update_only(optimizer)
    program.step(lambda k, r: [torch.ones(1)])
    assert_close_sums(program.weights[0], torch.tensor([0.5]), terms=1, dtype=torch.float16)


def test_half_accumulators_force_the_running_mean(weights, update_only):
    running, post = poptorch.MeanReductionStrategy.Running, poptorch.MeanReductionStrategy.Post
    expected = {
        (torch.float32, False): post,
        (torch.float16, False): running,
        (torch.float16, True): post,
        (torch.float32, True): post,
    }
    for (accum, combined), strategy in expected.items():
        optimizer = P.SGD(weights, lr=0.1, accum_type=accum, use_combined_accum=combined)
        spec = update_only(optimizer, poptorch.Options()).spec
        assert spec.strategy == strategy, (accum, combined)
        assert spec.groups[0].reduction.running == (strategy == running)


def test_running_mean_survives_where_the_sum_overflows(update_only):
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    program = update_only(P.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0**-15, accum_type=torch.float16), options)
    program.step(lambda k, r: [torch.tensor([32768.0])])
    assert_close_sums(program.weights[0], torch.tensor([-1.0]), terms=4)
