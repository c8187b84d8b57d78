"""The rules can be recorded as graphs of ATen operations and replayed with other hyper-parameters."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import poptorch
from closeness import assert_close_sums
from poptorch.optim.rules import UpdateRule
from poptorch.optim.spec import describe

P = poptorch.optim
EVERYTHING = {
    "SGD": lambda w: P.SGD(w, lr=0.1, weight_decay=0.1),
    "SGD constant decay": lambda w: P.SGD(w, lr=0.1),
    "SGD separate": lambda w: P.SGD(w, lr=0.1, momentum=0.9, weight_decay=0.1, loss_scaling=2.0),
    "SGD Nesterov": lambda w: P.SGD(w, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD combined": lambda w: P.SGD(
        w, lr=0.1, momentum=0.9, weight_decay=0.1, use_combined_accum=True, velocity_scaling=4.0
    ),
    "SGD combined Nesterov": lambda w: P.SGD(w, lr=0.1, momentum=0.9, nesterov=True, use_combined_accum=True),
    "SGD clipped": lambda w: P.SGD(w, lr=0.1, momentum=0.9, max_grad_norm=0.1),
    "Adam fused": lambda w: P.Adam(w, lr=0.1, weight_decay=0.1),
    "Adam": lambda w: P.Adam(w, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1),
    "Adam clipped": lambda w: P.Adam(w, lr=0.1, max_grad_norm=0.1, loss_scaling=8.0),
    "AdamW fused": lambda w: P.AdamW(w, lr=0.1, weight_decay=0.2),
    "AdamW": lambda w: P.AdamW(w, lr=0.1, betas=(0.8, 0.9), eps=1e-3),
    "AdamW all constant": lambda w: P.AdamW(w),
    "RMSprop": lambda w: P.RMSprop(w, lr=0.1, alpha=0.9, eps=1e-3, weight_decay=0.1),
    "RMSprop centred": lambda w: P.RMSprop(w, lr=0.1, centered=True, momentum=0.9),
    "RMSprop TF": lambda w: P.RMSprop(w, lr=0.1, momentum=0.9, use_tf_variant=True),
    "LAMB": lambda w: P.LAMB(w, lr=0.1, max_weight_norm=2.0, betas=(0.8, 0.9)),
    "LAMB constant": lambda w: P.LAMB(w, bias_correction=False),
}


def flat(*parts):
    return [t for part in parts for t in (part if isinstance(part, list) else [t for ts in part.values() for t in ts])]


@pytest.mark.parametrize("name", EVERYTHING)
def test_recorded_graph_follows_other_hyper_parameters(name, weights, gradients):
    group = describe(EVERYTHING[name](weights), None).groups[0]
    params = [w.detach() for w in weights]
    state = group.rule.init_state(params)
    grads = gradients(0, 0, 0)
    hyper = {key: torch.tensor(value, dtype=torch.float64) for key, value in group.variables.items()}

    def step(params, grads, state, hyper):
        group.rule.update_(params, grads, state, hyper)
        return ()

    graph = make_fx(step, tracing_mode="fake")(params, grads, state, hyper)
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert all(
        isinstance(t, torch._ops.OpOverload) and t.namespace == "aten" for t in targets if "getitem" not in str(t)
    )
    assert not any(node.op == "get_attr" for node in graph.graph.nodes), "a value was frozen into the graph"

    other = {key: value * 0.9 for key, value in hyper.items()}
    expected, replayed = (copy.deepcopy((params, state)) for _ in range(2))
    for k in range(3):
        group.rule.update_(expected[0], gradients(k, 0, 0), expected[1], other)
        graph(replayed[0], gradients(k, 0, 0), replayed[1], other)
    assert_close_sums(flat(*replayed), flat(*expected), terms=12, steps=3)
    assert not any(torch.isnan(t).any() for t in flat(*expected))


def test_gradients_are_not_touched(weights, gradients):
    for make in EVERYTHING.values():
        group = describe(make(weights), None).groups[0]
        params = [w.detach().clone() for w in weights]
        grads = [g.clone() for g in gradients(0, 0, 0)]
        hyper = {key: torch.tensor(value, dtype=torch.float64) for key, value in group.variables.items()}
        group.rule.update_(params, grads, group.rule.init_state(params), hyper)
        assert all(torch.equal(a, b) for a, b in zip(grads, gradients(0, 0, 0), strict=True))


def test_initial_state_does_not_share_memory_with_weights(weights):
    for decay in (0.0, 0.5, 1.0):
        optimizer = P.SGD(weights, lr=0.1, momentum=0.9, weight_decay=decay, use_combined_accum=True)
        state = describe(optimizer, None).init_state()[0]
        for weight, tensor in zip(weights, state["Accl"], strict=True):
            assert_close_sums(tensor, decay * weight.detach(), terms=1)
            assert tensor.data_ptr() != weight.data_ptr()


def test_rules_satisfy_the_protocol_and_name_their_inputs(weights):
    for make in EVERYTHING.values():
        group = describe(make(weights), None).groups[0]
        assert isinstance(group.rule, UpdateRule)
        assert group.rule.inputs == tuple(group.variables)
        assert not set(group.variables) & set(group.constants)


def test_few_calls_for_many_weights(gradients):
    # the number of calls must not grow with the number of weights
    def calls(count):
        weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]
        group = describe(P.AdamW(weights, lr=0.1), None).groups[0]
        params = [w.detach() for w in weights]
        state, grads = group.rule.init_state(params), [torch.ones(2) for _ in params]
        hyper = {key: torch.tensor(value, dtype=torch.float64) for key, value in group.variables.items()}

        def step(params, grads, state, hyper):
            group.rule.update_(params, grads, state, hyper)
            return ()

        graph = make_fx(step, tracing_mode="fake")(params, grads, state, hyper)
        return sum(isinstance(node.target, torch._ops.OpOverload) for node in graph.graph.nodes)

    assert calls(20) == calls(2) <= 8


def test_rules_without_finite_norm_do_not_clip(weights):
    assert math.isinf(describe(P.SGD(weights, lr=0.1), None).groups[0].rule.max_grad_norm)
