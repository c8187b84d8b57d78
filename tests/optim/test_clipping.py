"""Gradient clipping: one norm over all weights of all groups, measured where each optimizer measures it."""

from __future__ import annotations

import pytest
import torch

import poptorch
from closeness import assert_close_sums

P = poptorch.optim
LIMIT = 0.001


@pytest.mark.parametrize(
    ("kind", "native"), [(P.SGD, torch.optim.SGD), (P.Adam, torch.optim.Adam), (P.AdamW, torch.optim.AdamW)]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_agrees_with_clip_grad_norm(kind, native, groups, weights, gradients, update_only, clone):
    theirs = clone(weights)
    split = (lambda ws: [{"params": ws[:2]}, {"params": ws[2:]}]) if groups == 2 else (lambda ws: ws)
    program = update_only(kind(split(weights), lr=0.01, max_grad_norm=LIMIT))
    optimizer = native(split(theirs), lr=0.01)
    for step in range(10):
        grads = gradients(step, 0, 0)
        program.step(lambda k, r, grads=grads: grads)
        for weight, grad in zip(theirs, grads, strict=True):
            weight.grad = grad.clone()
        # torch adds 1e-6 to the norm: a larger limit in proportion takes that out
        norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in grads]))
        torch.nn.utils.clip_grad_norm_(theirs, LIMIT * float((norm + 1e-6) / norm))
        optimizer.step()
    assert_close_sums(program.weights, theirs, terms=30, steps=10, scale=1.0)


def test_small_gradients_pass_unchanged(weights, gradients, update_only, clone):
    copies = clone(weights)
    clipped = update_only(P.Adam(weights, lr=0.01, max_grad_norm=1e6))
    free = update_only(P.Adam(copies, lr=0.01))
    for program in (clipped, free):
        program.step(lambda k, r: gradients(0, k, r))
    assert_close_sums(clipped.weights, free.weights, terms=1, scale=1.0)


def test_sgd_measures_scaled_sums_before_the_mean_is_taken(update_only):
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    weight = torch.nn.Parameter(torch.zeros(1))
    program = update_only(P.SGD([weight], lr=1.0, loss_scaling=4.0, max_grad_norm=1.0), options)
    program.step(lambda k, r: [torch.tensor([3.0])])
    # s = 2·4·3 = 24 is clipped to 1, then divided by 4·2
    assert_close_sums(program.weights[0], torch.tensor([-1.0 / 8.0]), terms=4)


@pytest.mark.parametrize("combined", [False, True])
def test_velocity_is_clipped_for_the_step_only(combined, update_only):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = P.SGD([weight], lr=1.0, momentum=0.5, max_grad_norm=1.0, use_combined_accum=combined)
    program = update_only(optimizer)
    program.step(lambda k, r: [torch.tensor([4.0])])
    assert_close_sums(program.weights[0], torch.tensor([-1.0]), terms=4)
    stored = program.states[0]["Accl" if combined else "Accl1"][0]
    assert_close_sums(stored, torch.tensor([2.0 if combined else 4.0]), terms=4)


def test_adam_measures_the_gradient_with_its_decay(update_only):
    weight = torch.nn.Parameter(torch.tensor([10.0]))
    program = update_only(P.Adam([weight], lr=1.0, weight_decay=1.0, max_grad_norm=2.0, betas=(0.5, 0.5)))
    program.step(lambda k, r: [torch.tensor([6.0])])
    assert_close_sums(program.states[0]["Accl1"][0], torch.tensor([1.0]), terms=4)  # (6 + 10) → 2, halved by β1


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, P.LAMB])
def test_optimizers_without_clipping_say_so(kind, weights, update_only, caplog):
    optimizer = kind(weights, lr=0.1)
    optimizer.max_grad_norm = 1.0
    update_only(optimizer)
    assert "max_grad_norm=1.0 is ignored" in caplog.text
