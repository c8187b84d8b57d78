"""Manual and automatic loss scaling, and the reduction of gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import poptorch
from closeness import assert_close_sums
from poptorch.optim.auto_loss_scale import (
    AutomaticLossScale,
    LossScalingSettings,
    count_large,
    next_factor,
    tracked,
)
from poptorch.optim.reduction import GradientReduction
from poptorch.optim.settings import UpdateSettings

P, T = poptorch.optim, torch.optim
DEFAULTS = LossScalingSettings()


def half(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float16)


class TestAlgorithm:
    def test_constants(self):
        assert (DEFAULTS.edge, DEFAULTS.upper_proportion, DEFAULTS.update_period) == (8188.0, 1e-7, 1)

    def test_counting(self):
        large, small = count_large([half(8188, -60000, 1), half(8184, float("inf"), float("nan"))], DEFAULTS)
        assert (int(large), int(small)) == (4, 2)

    def test_doubles_every_step_without_large_gradients(self):
        scale = AutomaticLossScale(DEFAULTS)
        for step in range(5):
            assert scale.factor == 2.0**step
            scale.observe([half(1.0), torch.ones(3)])
            scale.step()

    def test_halves_on_large_gradients_of_any_micro_batch(self):
        scale = AutomaticLossScale(DEFAULTS)
        scale.observe([half(1.0)])
        scale.observe([half(9000.0)])
        scale.step()
        assert scale.factor == 0.5
        scale.observe([half(1.0)])  # the counts start anew
        scale.step()
        assert scale.factor == 1.0

    def test_update_period(self):
        scale = AutomaticLossScale(LossScalingSettings(update_period=3))
        factors = []
        for step in range(6):
            scale.observe([half(9000.0 if step == 2 else 1.0)])
            scale.step()
            factors.append(float(scale.factor))
        assert factors == [1.0, 1.0, 0.5, 0.5, 0.5, 1.0]

    def test_factor_has_the_type_of_the_loss(self):
        scale = AutomaticLossScale(DEFAULTS, torch.float16)
        scale.observe([half(1.0)])
        scale.step()
        assert scale.factor.dtype == torch.float16

    def test_nothing_to_watch(self):
        with pytest.raises(poptorch.Error, match="No tracked gradient tensors of type fp16 were found"):
            tracked([torch.ones(2)])

    @given(
        large=st.integers(0, 10**9),
        small=st.integers(0, 10**9),
        share=st.floats(0.0, 0.999, allow_subnormal=False),
    )
    @settings(max_examples=100, deadline=None)
    def test_threshold(self, large, small, share):
        chosen = LossScalingSettings(upper_proportion=share)
        factor = next_factor(torch.tensor(8.0), torch.tensor(large), torch.tensor(small), chosen)
        left, right = large * (1 - share), small * share
        if abs(left - right) > 1e-9 * max(left, right):  # beyond rounding of the comparison itself
            assert float(factor) == (4.0 if left > right else 16.0)

    @pytest.mark.parametrize(
        "values", [{"bin_edge": 1.5}, {"upper_proportion": -0.1}, {"update_period": 0}, {"bin_edge": float("nan")}]
    )
    def test_settings_out_of_range(self, values):
        with pytest.raises(poptorch.Error, match="automaticLossScalingSettings"):
            LossScalingSettings(**values)

    def test_traceable(self):
        def step(factor, gradient):
            return next_factor(factor, *count_large([gradient], DEFAULTS), DEFAULTS)

        graph = make_fx(step, tracing_mode="fake")(torch.tensor(1.0), half(1.0, 2.0))
        assert graph(torch.tensor(4.0), half(9000.0, 2.0)) == 2.0
        assert graph(torch.tensor(4.0), half(9.0, 2.0)) == 8.0


class TestInRules:
    @staticmethod
    def options():
        options = poptorch.Options()
        options.Training.setAutomaticLossScaling(True)
        return options

    @pytest.mark.parametrize(
        "make",
        [
            lambda w: P.SGD(w, lr=0.1),
            lambda w: P.SGD(w, lr=0.1, momentum=0.9, loss_scaling=2.0),
            lambda w: P.SGD(w, lr=0.1, momentum=0.9, nesterov=True),
            lambda w: P.SGD(w, lr=0.1, momentum=0.9, use_combined_accum=True),
            lambda w: P.Adam(w, lr=0.1),
            lambda w: P.AdamW(w, lr=0.1),
            lambda w: P.RMSprop(w, lr=0.1),
            lambda w: P.LAMB(w, lr=0.1),
            lambda w: T.SGD(w, lr=0.1, momentum=0.9),
            lambda w: T.Adam(w, lr=0.1),
            lambda w: T.AdamW(w, lr=0.1),
            lambda w: T.RMSprop(w, lr=0.1),
        ],
    )
    def test_the_factor_does_not_change_the_result(self, make, weights, gradients, update_only, clone):
        copies = clone(weights)
        scaled, plain = update_only(make(weights), self.options()), update_only(make(copies))
        for step, factor in enumerate((1.0, 2.0, 4.0, 2.0)):
            scaled.factor = torch.tensor(factor)
            for program in (scaled, plain):
                program.step(lambda k, r, step=step: gradients(step, k, r))
        assert_close_sums(scaled.weights, plain.weights, terms=12, steps=4, scale=1.0)

    def test_velocity_keeps_the_users_scale(self, weights, gradients, update_only):
        program = update_only(P.SGD(weights, lr=0.1, momentum=0.9, loss_scaling=2.0), self.options())
        program.factor = torch.tensor(8.0)
        program.step(lambda k, r: gradients(0, k, r))
        for velocity, gradient in zip(program.states[0]["Accl1"], gradients(0, 0, 0), strict=True):
            torch.testing.assert_close(velocity, 2.0 * gradient)

    def test_the_factor_is_among_the_inputs(self, weights, update_only):
        spec = update_only(P.Adam(weights, lr=0.1), self.options()).spec
        assert set(spec.groups[0].rule.inputs) <= set(spec.hyper()[0])
        assert spec.hyper()[0]["loss_scale_factor"] == 1.0
        assert "loss_scale_factor" not in update_only(P.Adam(weights, lr=0.1)).spec.hyper()[0]

    def test_tunables_come_from_the_options(self):
        options = self.options()
        options._Popart.set("automaticLossScalingSettings.binEdgeLocation", 0.5)
        options._Popart.set("automaticLossScalingSettings.thresholdUpperCountProportion", 0.25)
        options._Popart.set("automaticLossScalingSettings.updatePeriod", 3)
        assert UpdateSettings.from_options(options).loss_scaling == LossScalingSettings(0.5, 0.25, 3)
        assert UpdateSettings.from_options(poptorch.Options()).loss_scaling is None


class TestReduction:
    values = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8)

    @given(values)
    @settings(max_examples=50, deadline=None)
    def test_running_mean_is_the_mean(self, values):
        reduction = GradientReduction(running=True, micro_batches=len(values), replicas=1, divisor=1)
        total = [torch.zeros((), dtype=torch.float64)]
        for index, value in enumerate(values):
            reduction.accumulate_(total, [torch.tensor(value, dtype=torch.float64)], index)
        assert float(total[0]) == pytest.approx(sum(values) / len(values), abs=1e-9)

    @given(values)
    @settings(max_examples=50, deadline=None)
    def test_post_leaves_the_sum(self, values):
        reduction = GradientReduction(running=False, micro_batches=len(values), replicas=1, divisor=len(values))
        total = [torch.zeros((), dtype=torch.float64)]
        for index, value in enumerate(values):
            reduction.accumulate_(total, [torch.tensor(value, dtype=torch.float64)], index)
        assert float(total[0]) == pytest.approx(sum(values), abs=1e-9)

    @pytest.mark.parametrize(
        ("how", "strategy", "expected", "divisor"),
        [("Sum", "Post", 4.0, 1), ("Mean", "Post", 4.0, 8), ("Mean", "Running", 2.0, 1), ("Sum", "Running", 4.0, 1)],
    )
    def test_table(self, how, strategy, expected, divisor):
        update = UpdateSettings(
            micro_batches=4,
            replicas=2,
            reduction=poptorch.ReductionType[how],
            strategy=poptorch.MeanReductionStrategy[strategy],
        )
        reduction = GradientReduction.of(update)
        assert reduction.divisor == divisor
        assert reduction.combine([[torch.tensor(1.0)], [torch.tensor(3.0)]]) == [torch.tensor(expected)]

    def test_combining_changes_no_replica(self):
        reduction = GradientReduction(running=False, micro_batches=1, replicas=2, divisor=1)
        one, two = torch.ones(2), torch.ones(2)
        reduction.combine([[one], [two]])
        assert torch.equal(one, torch.ones(2))
        assert torch.equal(two, torch.ones(2))

    def test_index_may_be_an_input_of_a_graph(self):
        reduction = GradientReduction(running=True, micro_batches=4, replicas=1, divisor=1)

        def step(total, grad, index):
            reduction.accumulate_([total], [grad], index)
            return ()

        graph = make_fx(step, tracing_mode="fake")(torch.zeros(2), torch.ones(2), torch.tensor(0))
        total = torch.zeros(2)
        for index, value in enumerate((1.0, 2.0, 6.0)):
            graph(total, torch.full((2,), value), torch.tensor(index))
        torch.testing.assert_close(total, torch.full((2,), 3.0))

    def test_replicas_of_all_processes_count(self):
        options = poptorch.Options().replicationFactor(2)
        options.Distributed.configureProcessId(0, 3)
        assert UpdateSettings.from_options(options).replicas == 6
