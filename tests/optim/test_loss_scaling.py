"""Manual and automatic loss scaling, and what the options say about the reduction of gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch
from closeness import assert_close_sums
from poptorch.compiler.request import update_settings
from poptorch.optim.auto_loss_scale import LossScalingSettings, next_factor
from poptorch.optim.reduction import GradientReduction
from poptorch.optim.settings import UpdateSettings

P, T = poptorch.optim, torch.optim
DEFAULTS = LossScalingSettings()


class TestAlgorithm:
    def test_constants(self):
        assert (DEFAULTS.edge, DEFAULTS.upper_proportion, DEFAULTS.update_period) == (8188.0, 1e-7, 1)

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
            assert_close_sums(velocity, 2.0 * gradient, terms=1)

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
        assert update_settings(options).loss_scaling == LossScalingSettings(0.5, 0.25, 3)
        assert update_settings(poptorch.Options()).loss_scaling is None


class TestReduction:
    @pytest.mark.parametrize(
        ("how", "strategy", "expected"),
        [
            ("Sum", "Post", GradientReduction(running=False, divisor=1)),
            ("Mean", "Post", GradientReduction(running=False, divisor=8)),
            ("Mean", "Running", GradientReduction(running=True, divisor=1)),
            ("Sum", "Running", GradientReduction(running=False, divisor=1)),
        ],
    )
    def test_table(self, how, strategy, expected):
        update = UpdateSettings(
            micro_batches=4,
            replicas=2,
            reduction=poptorch.ReductionType[how],
            strategy=poptorch.MeanReductionStrategy[strategy],
        )
        assert GradientReduction.of(update) == expected

    def test_replicas_of_all_processes_count(self):
        options = poptorch.Options().replicationFactor(2)
        options.Distributed.configureProcessId(0, 3)
        assert update_settings(options).replicas == 6
