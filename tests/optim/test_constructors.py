"""Constructors, attributes, and which of them are variable."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

import poptorch

P = poptorch.optim
ALL = (P.SGD, P.Adam, P.AdamW, P.RMSprop, P.LAMB)
MOMENTS = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")


def test_effective_defaults(weights):
    sgd = P.SGD(weights, lr=0.1)
    assert (sgd.defaults["momentum"], sgd.defaults["dampening"], sgd.defaults["weight_decay"]) == (0, 0, 0)
    assert sgd.defaults["nesterov"] is False
    assert "velocity_scaling" not in sgd.defaults
    assert (sgd.loss_scaling, sgd.use_combined_accum, sgd.max_grad_norm) == (1.0, False, math.inf)
    assert sgd.accum_type == sgd.velocity_accum_type == torch.float32
    adam, adamw, rmsprop, lamb = P.Adam(weights), P.AdamW(weights), P.RMSprop(weights), P.LAMB(weights)
    for optimizer, decay in ((adam, 0), (adamw, 1e-2), (lamb, 1e-2)):
        assert optimizer.defaults["lr"] == 1e-3
        assert optimizer.defaults["betas"] == (0.9, 0.999)
        assert optimizer.defaults["eps"] == 1e-8
        assert optimizer.defaults["weight_decay"] == decay
    assert adamw.bias_correction is lamb.bias_correction is True
    assert lamb.max_weight_norm == lamb.defaults["max_weight_norm"] == 65500.0
    assert P.LAMB(weights, max_weight_norm=None).max_weight_norm == 65500.0
    assert (rmsprop.defaults["lr"], rmsprop.defaults["alpha"], rmsprop.defaults["momentum"]) == (1e-2, 0.99, 0)
    assert rmsprop.use_tf_variant is False
    for optimizer in (adam, adamw, rmsprop, lamb):
        assert all(getattr(optimizer, name) == torch.float32 for name in MOMENTS)
    assert adam.max_grad_norm == adamw.max_grad_norm == math.inf
    assert not hasattr(rmsprop, "max_grad_norm")


def test_positional_order():
    names = {kind: list(inspect.signature(kind).parameters) for kind in ALL}
    assert names[P.SGD][:12] == [
        "params",
        "lr",
        "momentum",
        "dampening",
        "weight_decay",
        "nesterov",
        "loss_scaling",
        "velocity_scaling",
        "use_combined_accum",
        "accum_type",
        "velocity_accum_type",
        "max_grad_norm",
    ]
    assert names[P.AdamW][:12] == [
        "params",
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "amsgrad",
        "loss_scaling",
        "bias_correction",
        "accum_type",
        "first_order_momentum_accum_type",
        "second_order_momentum_accum_type",
        "max_grad_norm",
    ]
    assert names[P.RMSprop][:12] == [
        "params",
        "lr",
        "alpha",
        "eps",
        "weight_decay",
        "momentum",
        "centered",
        "loss_scaling",
        "accum_type",
        "first_order_momentum_accum_type",
        "second_order_momentum_accum_type",
        "use_tf_variant",
    ]
    assert names[P.LAMB] == [
        "params",
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "bias_correction",
        "loss_scaling",
        "max_weight_norm",
        "accum_type",
        "first_order_momentum_accum_type",
        "second_order_momentum_accum_type",
    ]


def test_bases():
    natives = {P.SGD: torch.optim.SGD, P.Adam: torch.optim.Adam, P.AdamW: torch.optim.AdamW}
    natives |= {P.RMSprop: torch.optim.RMSprop, P.LAMB: torch.optim.Optimizer}
    for kind, native in natives.items():
        assert kind.__bases__ == (P.Optimizer, native)


def test_learning_rate_is_mandatory_for_sgd(weights):
    with pytest.raises(TypeError):
        P.SGD(weights)


@pytest.mark.parametrize("kind", ALL)
def test_bad_accumulation_types(kind, weights):
    names = ("accum_type", "velocity_accum_type") if kind is P.SGD else MOMENTS
    for name in names:
        with pytest.raises(AssertionError, match=r"Accumulation types must be either torch.float32 or torch.float16"):
            kind(weights, lr=0.1, **{name: torch.float64})


@pytest.mark.parametrize("kind", [P.SGD, P.Adam, P.AdamW, P.RMSprop])
def test_torch_validates_its_own_arguments(kind, weights):
    with pytest.raises(ValueError, match="Invalid learning rate"):
        kind(weights, lr=-1.0)


def test_velocity_scaling_belongs_to_the_combined_variant(weights, caplog):
    combined = P.SGD(
        [{"params": weights[:1]}, {"params": weights[1:], "velocity_scaling": 2.0}],
        lr=0.1,
        velocity_scaling=128.0,
        use_combined_accum=True,
    )
    assert combined.defaults["velocity_scaling"] == 128.0
    assert [group["velocity_scaling"] for group in combined.param_groups] == [128.0, 2.0]
    assert not combined.variable_attrs.isConstant("velocity_scaling")
    separate = P.SGD(weights, lr=0.1, velocity_scaling=128.0)
    assert "velocity_scaling value ignored when using the separate variant" in caplog.text
    assert "velocity_scaling" not in separate.defaults
    assert "velocity_scaling" not in separate.param_groups[0]
    with pytest.raises(AssertionError, match="Unknown attribute"):
        separate.variable_attrs.markAsVariable("velocity_scaling")


def test_missing_bias_correction_of_adamw_is_mentioned(weights, caplog):
    P.AdamW(weights, bias_correction=False)
    assert "AdamW applies bias correction" in caplog.text


def test_arguments_of_newer_torch_are_forwarded(weights):
    assert P.SGD(weights, lr=0.1, maximize=True, foreach=True).defaults["maximize"] is True
    assert P.Adam(weights, maximize=True, fused=False).defaults["fused"] is False
    assert P.AdamW(weights, capturable=False, differentiable=False).defaults["capturable"] is False
    assert P.RMSprop(weights, foreach=False).defaults["foreach"] is False


class TestVariableAttributes:
    def test_passing_makes_variable_even_the_default(self, weights):
        attrs = P.Adam(weights, lr=1e-3, weight_decay=0).variable_attrs
        assert not attrs.isConstant("lr")
        assert not attrs.isConstant("weight_decay")
        assert attrs.isConstant("betas")
        assert attrs.isConstant("loss_scaling")
        assert P.Adam(weights).variable_attrs.isConstant("lr")

    def test_value_in_a_group_does_not_make_variable(self, weights):
        optimizer = P.SGD([{"params": weights, "momentum": 0.9}], lr=0.1)
        assert optimizer.variable_attrs.isConstant("momentum")

    def test_marking(self, weights):
        attrs = P.SGD(weights, lr=0.1).variable_attrs
        attrs.markAsVariable("momentum")
        attrs.markAsConstant("lr")
        assert not attrs.isConstant("momentum")
        assert attrs.isConstant("lr")

    def test_unknown_names(self, weights):
        attrs = P.SGD(weights, lr=0.1).variable_attrs
        assert attrs.isConstant("nonsense")
        for mark in (attrs.markAsConstant, attrs.markAsVariable):
            with pytest.raises(AssertionError, match=r"Unknown attribute 'accum_type', allowed values: \["):
                mark("accum_type")


def test_closure_and_missing_gradients_in_the_cpu_step_of_lamb(weights):
    optimizer = P.LAMB(weights, lr=0.1)
    before = [w.detach().clone() for w in weights]
    weights[0].grad = torch.ones_like(weights[0])
    assert optimizer.step(lambda: 3.5) == 3.5
    assert not torch.equal(weights[0], before[0])
    assert torch.equal(weights[1], before[1])
    assert set(optimizer.state[weights[0]]) == {"step", "exp_avg", "exp_avg_sq"}
