"""Reading optimizers: types, constness, groups, scalars, and what is refused."""

from __future__ import annotations

import pytest
import torch

import poptorch
from poptorch.compiler.request import update_settings
from poptorch.optim.ranges import check_ranges
from poptorch.optim.reading import OptimizerType
from poptorch.optim.spec import describe, state_name

P, T = poptorch.optim, torch.optim


@pytest.mark.parametrize(
    ("make", "name", "kind"),
    [
        (lambda w: P.SGD(w, lr=0.1, use_combined_accum=True), "SGD1", "SGD-combined"),
        (lambda w: P.SGD(w, lr=0.1), "SGD2", "SGD"),
        (lambda w: T.SGD(w, lr=0.1), "SGD2", "SGD"),
        (lambda w: P.Adam(w), "ADAM", "Adam"),
        (lambda w: T.Adam(w), "ADAM", "Adam"),
        (lambda w: P.AdamW(w), "ADAMW", "AdamW"),
        (lambda w: T.AdamW(w), "ADAMW", "AdamW"),
        (lambda w: P.AdamW(w, bias_correction=False), "ADAMW_NO_BIAS", "AdamW-no-bias"),
        (lambda w: P.RMSprop(w), "RMSPROP", "RMSprop"),
        (lambda w: T.RMSprop(w, centered=True), "RMSPROP_CENTERED", "RMSprop-centered"),
        (lambda w: P.LAMB(w), "LAMB", "LAMB"),
        (lambda w: P.LAMB(w, bias_correction=False), "LAMB_NO_BIAS", "LAMB-no-bias"),
    ],
)
def test_types(make, name, kind, weights):
    spec = describe(make(weights), update_settings(poptorch.Options()))
    assert (spec.type.name, spec.kind) == (name, kind)
    assert str(spec).startswith(kind)


def test_type_numbers():
    assert [member.value for member in OptimizerType] == list(range(9))


@pytest.mark.parametrize(
    "name", ["Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop", "LBFGS", "SparseAdam"]
)
def test_unsupported_optimizers(name, weights):
    with pytest.raises(AssertionError, match=r"^Unsupported optimizer type. Types supported .*SGD1.*LAMB_NO_BIAS"):
        describe(getattr(T, name)(weights), None)


@pytest.mark.parametrize("base", [P.SGD, P.Adam, P.AdamW, P.RMSprop, P.LAMB, T.SGD, T.Adam, T.AdamW, T.RMSprop])
def test_subclasses_are_accepted_with_a_warning(base, weights, caplog):
    describe(base(weights, lr=0.1), None)
    assert "Poptorch does not run Python" not in caplog.text
    derived = type("Derived", (base,), {})
    assert describe(derived(weights, lr=0.1), None).type == describe(base(weights, lr=0.1), None).type
    assert "Poptorch does not run Python optimizer code directly" in caplog.text


class TestRefusedAttributes:
    def test_nesterov_only_under_strict_compatibility(self, weights):
        optimizer = T.SGD(weights, lr=0.001, momentum=0.1, nesterov=True)
        assert describe(optimizer, update_settings(poptorch.Options())).groups[0].rule.nesterov
        with pytest.raises(ValueError, match="Nesterov momentum is currently not supported"):
            describe(optimizer, update_settings(poptorch.Options().strictCompatibility(True)))

    @pytest.mark.parametrize("kind", [P.Adam, P.AdamW, T.Adam, T.AdamW])
    def test_amsgrad(self, kind, weights):
        with pytest.raises(ValueError, match="Only non-amsgrad Adam/AdamW optimizers are supported"):
            describe(kind(weights, amsgrad=True), None)

    def test_amsgrad_in_one_group_or_in_defaults(self, weights):
        optimizer = P.Adam([{"params": weights[:1]}, {"params": weights[1:], "amsgrad": True}])
        with pytest.raises(ValueError, match="amsgrad"):
            describe(optimizer, None)
        optimizer = P.Adam(weights)
        optimizer.defaults["amsgrad"] = True
        with pytest.raises(ValueError, match="amsgrad"):
            describe(optimizer, None)

    def test_centered_must_agree(self, weights):
        optimizer = T.RMSprop([{"params": weights[:1]}, {"params": weights[1:], "centered": True}])
        with pytest.raises(
            AssertionError, match="All parameter groups must have the same value for the 'centered' attribute"
        ):
            describe(optimizer, None)

    def test_accumulation_type_set_later(self, weights):
        optimizer = T.Adam(weights)
        optimizer.accum_type = torch.int32
        with pytest.raises(ValueError, match=r"must be set to either torch.float16 or torch.float32"):
            describe(optimizer, None)

    def test_not_a_number(self, weights):
        optimizer = P.Adam(weights)
        optimizer.param_groups[0]["eps"] = "tiny"
        with pytest.raises(AssertionError, match="Expected a number for eps"):
            describe(optimizer, None)
        optimizer = P.Adam(weights)
        optimizer.loss_scaling = None
        with pytest.raises(AssertionError, match="Expected a number for loss_scaling"):
            describe(optimizer, None)

    @pytest.mark.parametrize("betas", [[0.9, 0.99], (0.9,), 0.9])
    def test_betas(self, betas, weights):
        optimizer = P.Adam(weights)
        optimizer.param_groups[0]["betas"] = betas
        with pytest.raises(AssertionError, match="Expected a pair for betas"):
            describe(optimizer, None)

    def test_missing_attribute(self, weights):
        optimizer = P.RMSprop(weights)
        del optimizer.param_groups[0]["alpha"]
        with pytest.raises(AssertionError, match="Mandatory attribute alpha not found in optimizer group"):
            describe(optimizer, None)

    def test_tensor_learning_rate_is_a_number(self, weights):
        optimizer = T.Adam(weights, lr=torch.tensor(0.25))
        assert describe(optimizer, None).groups[0].variables["learningRate"] == 0.25


class TestRanges:
    @pytest.mark.parametrize(
        ("make", "change", "phrase"),
        [
            (lambda w: P.LAMB(w), {"lr": -1.0}, "Negative learning rate"),
            (lambda w: P.Adam(w), {"lr": 0.0}, "Constant, zero learning rate"),
            (lambda w: P.LAMB(w), {"weight_decay": -1.0}, "Negative weight decay"),
            (lambda w: P.SGD(w, lr=0.1), {"momentum": -0.1}, "Negative momentum"),
            (lambda w: P.SGD(w, lr=0.1), {"dampening": -0.1}, "Negative dampening"),
            (lambda w: P.SGD(w, lr=0.1, use_combined_accum=True), {"velocity_scaling": 0.0}, "velocity scaling"),
            (lambda w: P.LAMB(w), {"betas": (-0.1, 0.9)}, "Negative beta1"),
            (lambda w: P.AdamW(w), {"betas": (0.1, -0.9)}, "Negative beta2"),
            (lambda w: P.Adam(w), {"eps": 0.0}, "Non-positive eps"),
            (lambda w: P.RMSprop(w), {"alpha": -0.5}, "Negative alpha"),
            (lambda w: P.RMSprop(w), {"eps": -0.5}, "Non-positive eps"),
            (
                lambda w: P.SGD(w, lr=0.1, momentum=0.9, nesterov=True),
                {"dampening": 0.5},
                "Nesterov momentum cannot be combined with dampening",
            ),
        ],
    )
    def test_group_attributes(self, make, change, phrase, weights):
        optimizer = make(weights)
        check_ranges(describe(optimizer, None))
        optimizer.param_groups[0].update(change)
        spec = describe(optimizer, None)  # wrapping a model does not look at ranges
        with pytest.raises(poptorch.Error, match=phrase):
            check_ranges(spec)

    @pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
    def test_loss_scaling(self, value, weights):
        for optimizer in (P.SGD(weights, lr=0.1), P.Adam(weights, loss_scaling=2.0), T.SGD(weights, lr=0.1)):
            optimizer.loss_scaling = value
            with pytest.raises(poptorch.Error, match="Loss scaling cannot be 0"):
                check_ranges(describe(optimizer, None))

    def test_max_grad_norm(self, weights):
        with pytest.raises(poptorch.Error, match="Maximum norm of gradients cannot be NaN"):
            check_ranges(describe(P.SGD(weights, lr=0.1, max_grad_norm=float("nan")), None))

    def test_variable_zero_learning_rate_is_fine(self, weights):
        check_ranges(describe(P.Adam(weights, lr=0.0), None))
        check_ranges(describe(T.Adam(weights, lr=0.0), None))

    @pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
    def test_duplicates(self, weights):
        spec = describe(P.SGD([weights[0], weights[0]], lr=0.1), None)
        with pytest.raises(poptorch.Error, match=r"there is already a specific value for .* present"):
            check_ranges(spec)

    def test_retired_reduction_strategy(self, weights):
        options = poptorch.Options()
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.PostAndLoss)
        with pytest.raises(poptorch.Error, match="Value for MeanReductionStrategy out of range"):
            check_ranges(describe(P.SGD(weights, lr=0.1), update_settings(options)))


class TestConstness:
    @pytest.mark.parametrize(
        ("native", "ours"),
        [(T.SGD, P.SGD), (T.Adam, P.Adam), (T.AdamW, P.AdamW), (T.RMSprop, P.RMSprop)],
    )
    def test_native_with_defaults_equals_ours_with_a_learning_rate(self, native, ours, weights):
        mine, theirs = describe(ours(weights, lr=0.1), None), describe(native(weights, lr=0.1), None)
        assert theirs.signature() == mine.signature()
        assert theirs == mine
        variable = [n for n, a in theirs.groups[0].values.numbers.items() if not a.is_constant]
        assert variable == ["lr"]

    def test_everything_passed_and_marked_constant_equals_the_default(self, weights):
        default = P.Adam(weights)
        passed = P.Adam(weights, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, loss_scaling=1.0)
        assert describe(passed, None).signature() != describe(default, None).signature()
        for name in ("lr", "betas", "eps", "weight_decay", "loss_scaling"):
            passed.variable_attrs.markAsConstant(name)
        assert describe(passed, None).signature() == describe(default, None).signature()

    @pytest.mark.parametrize(
        ("make", "variable"),
        [
            (lambda w: T.SGD(w, lr=0.1, momentum=0.9), {"lr", "momentum"}),
            (lambda w: T.SGD(w, lr=0.1, momentum=0.9, dampening=0.1), {"lr", "momentum", "dampening"}),
            (lambda w: T.Adam(w, betas=(0.5, 0.5), eps=1e-4), {"lr", "eps"}),
            (lambda w: T.AdamW(w, weight_decay=0.01), {"lr"}),
            (lambda w: T.AdamW(w, weight_decay=0.0), {"lr", "weight_decay"}),
            (lambda w: T.RMSprop(w, alpha=0.5, weight_decay=0.1), {"lr", "weight_decay"}),
        ],
    )
    def test_native_by_value(self, make, variable, weights):
        numbers = describe(make(weights), None).groups[0].values.numbers
        assert {name for name, attribute in numbers.items() if not attribute.is_constant} == variable

    def test_native_loss_scaling_as_an_attribute(self, weights):
        optimizer = T.SGD(weights, lr=0.1)
        assert describe(optimizer, None).loss_scaling.is_always(1.0)
        optimizer.loss_scaling = 4.0
        scaling = describe(optimizer, None).loss_scaling
        assert (scaling.value, scaling.is_constant) == (4.0, False)

    def test_native_combined_by_attribute(self, weights):
        optimizer = T.SGD(weights, lr=0.1, momentum=0.9)
        optimizer.use_combined_accum = True
        assert describe(optimizer, None).kind == "SGD-combined"

    @pytest.mark.parametrize("make", [lambda w: P.Adam(w, lr=0.1), lambda w: T.Adam(w, lr=0.1)])
    def test_automatic_loss_scaling_makes_it_variable(self, make, weights):
        options = poptorch.Options()
        options.Training.setAutomaticLossScaling(True)
        spec = describe(make(weights), update_settings(options))
        assert not spec.loss_scaling.is_constant
        assert "loss_scale_factor" in spec.groups[0].rule.inputs

    def test_group_level_loss_scaling_has_no_effect(self, weights):
        optimizer = P.SGD(weights, lr=0.1)
        optimizer.param_groups[0]["loss_scaling"] = 8.0
        assert describe(optimizer, None).loss_scaling.value == 1.0


class TestVelocity:
    def test_constant_zero_momentum_needs_none(self, weights):
        assert not describe(P.SGD(weights, lr=0.1), None).groups[0].has_velocity
        assert not describe(T.SGD(weights, lr=0.1), None).groups[0].has_velocity

    def test_variable_zero_momentum_needs_it(self, weights):
        assert describe(P.SGD(weights, lr=0.1, momentum=0.0), None).groups[0].has_velocity

    def test_groups_decide_for_themselves(self, weights):
        optimizer = T.SGD([{"params": weights[:1]}, {"params": weights[1:], "momentum": 0.9}], lr=0.1)
        assert [group.has_velocity for group in describe(optimizer, None).groups] == [False, True]


class TestNames:
    """Keys and values of ``ipu_state`` and ``ipu_param``."""

    @staticmethod
    def described(optimizer, options=None):
        spec = describe(optimizer, update_settings(options))
        names = {p: f"w{i}" for i, p in enumerate(q for g in spec.groups for q in g.parameters)}
        return spec, names

    @pytest.mark.parametrize(
        ("make", "keys"),
        [
            (lambda w: P.SGD(w, lr=0.1), []),
            (lambda w: P.SGD(w, lr=0.1, momentum=0.9), ["Accl1___w0"]),
            (lambda w: P.SGD(w, lr=0.1, momentum=0.9, use_combined_accum=True), ["Accl___w0"]),
            (
                lambda w: P.SGD(w, lr=0.1, momentum=0.9, nesterov=True, use_combined_accum=True),
                ["Accl___w0", "Accl___w0_nesterovGrad"],
            ),
            (lambda w: P.Adam(w), ["Accl1___w0", "Accl2___w0", "Step___w0"]),
            (lambda w: P.LAMB(w), ["Accl1___w0", "Accl2___w0", "Step___w0"]),
            (lambda w: P.LAMB(w, bias_correction=False), ["Accl1___w0", "Accl2___w0"]),
            (lambda w: P.RMSprop(w), ["Accl1___w0"]),
            (lambda w: P.RMSprop(w, centered=True), ["Accl1___w0", "Accl2___w0"]),
            (lambda w: P.RMSprop(w, momentum=0.5), ["Accl1___w0", "Accl3___w0"]),
        ],
    )
    def test_state(self, make, keys, weights):
        spec, names = self.described(make(weights[:1]))
        state = spec.named_state(names, spec.init_state())
        assert sorted(state) == keys
        for key, tensor in state.items():
            assert tensor.shape == (() if key.startswith("Step") else weights[0].shape)

    def test_state_names(self):
        assert state_name("Accl1", "lin.weight") == "Accl1___lin.weight"

    def test_plain_sgd(self, weights):
        spec, names = self.described(P.SGD(weights, lr=0.1, weight_decay=0.2, loss_scaling=4.0))
        params = spec.named_params(names)
        assert params["scaledLearningRate0___specific___w2"] == pytest.approx(0.1 / 4)
        assert params["weightDecayScaleFactor0___specific___w0"] == pytest.approx(1 - 0.1 * 0.2)
        assert params["lossScaling_FLOAT"] == 4.0
        assert all(value.dtype == torch.float32 and value.shape == () for value in params.values())

    def test_separate_sgd_scales_velocity_like_the_loss(self, weights):
        options = poptorch.Options().replicationFactor(3)
        options.Training.gradientAccumulation(2)
        spec, names = self.described(
            P.SGD(weights, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.2, loss_scaling=2.0), options
        )
        params = {k.split("___")[0]: v for k, v in spec.named_params(names).items() if k.endswith("___w0")}
        assert {name: pytest.approx(float(value)) for name, value in params.items()} == {
            "scaledLearningRate2": 0.1 / 2,
            "scaledMomentum2": 0.9,
            "dampeningScaleFactor2": 0.5 * 2 / (2 * 6),
            "scaledWeightDecay1": 0.5 * 0.2 * 2,
        }

    def test_combined_sgd(self, weights):
        options = poptorch.Options().replicationFactor(3)
        options.Training.gradientAccumulation(2)
        spec, names = self.described(
            P.SGD(weights, lr=0.1, momentum=0.9, loss_scaling=2.0, velocity_scaling=8.0, use_combined_accum=True),
            options,
        )
        params = {k.split("___")[0]: v for k, v in spec.named_params(names).items() if k.endswith("___w0")}
        assert {name: pytest.approx(float(value)) for name, value in params.items()} == {
            "scaledLearningRate1": 0.1 / (8 * 3),
            "scaledMomentum1": 0.9 / 3,
            "dampeningScaleFactor1": 8 / 2 / 2,
            "scaledWeightDecay1": 0.0,
        }

    def test_adam_and_rmsprop(self, weights):
        spec, names = self.described(P.AdamW(weights, lr=0.1, loss_scaling=4.0))
        assert sorted(k for k in spec.named_params(names) if k.endswith("w0")) == [
            "adamGradientScaling___specific___w0",
            "learningRate___specific___w0",
        ]
        spec, names = self.described(P.RMSprop(weights, lr=0.1, alpha=0.5))
        assert sorted(k for k in spec.named_params(names) if k.endswith("w0")) == [
            "adaptiveAlpha___specific___w0",
            "learningRate___specific___w0",
        ]

    def test_half_weights_and_losses(self):
        weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
        spec, names = self.described(P.SGD([weight], lr=0.1, momentum=0.9, loss_scaling=2.0))
        params = spec.named_params(names, torch.float16)
        assert params["lossScaling_FLOAT16"].dtype == torch.float16
        assert params["scaledMomentum2___specific___w0"].dtype == torch.float16
        assert params["scaledLearningRate2___specific___w0"].dtype == torch.float32


class TestGroups:
    def test_groups_and_frozen_parameters(self, weights):
        weights[1].requires_grad_(False)
        optimizer = P.SGD([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.5}], lr=0.1)
        spec = describe(optimizer, None)
        assert [len(group.parameters) for group in spec.groups] == [1, 2]
        assert [group.variables["scaledLearningRate0"] for group in spec.groups] == [0.1, 0.5]

    @pytest.mark.parametrize("rates", [(0.0, 0.0), (0.1, 0.0), (0.1, 0.1)])
    def test_zero_rate_freezes_one_group(self, rates, weights, gradients, update_only):
        optimizer = P.SGD([{"params": weights[:2]}, {"params": weights[2:]}], lr=1.0, momentum=0.9)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        program = update_only(optimizer)
        before = [[w.clone() for w in group] for group in program.params]
        program.step(lambda k, r: gradients(0, k, r))
        for old, new, rate in zip(before, program.params, rates, strict=True):
            assert all(torch.equal(a, b) == (rate == 0.0) for a, b in zip(old, new, strict=True))

    def test_completely_frozen_group(self, weights, gradients, update_only):
        for weight in weights[:2]:
            weight.requires_grad_(False)
        optimizer = P.Adam([{"params": weights[:2]}, {"params": weights[2:]}], lr=1.0)
        program = update_only(optimizer)
        program.step(lambda k, r: gradients(0, k, r)[2:])
        assert program.params[0] == []

    def test_signature_knows_shapes_and_constants_but_not_variables(self, weights):
        one, same = P.SGD(weights, lr=0.1), P.SGD(weights, lr=0.5)
        assert describe(one, None).signature() == describe(same, None).signature()
        assert hash(describe(one, None).signature()) == hash(describe(same, None).signature())
        assert describe(P.SGD(weights[1:], lr=0.1), None).signature() != describe(one, None).signature()
        one.param_groups[0]["momentum"] = 0.9
        assert describe(one, None).signature() != describe(same, None).signature()

    def test_schedulers(self, weights):
        for optimizer in (T.Adam(weights, lr=1.0), P.Adam(weights, lr=1.0)):
            scheduler = T.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
            before = describe(optimizer, None)
            optimizer.step()
            scheduler.step()
            after = describe(optimizer, None)
            assert after.groups[0].variables["learningRate"] == 0.5
            assert after.signature() == before.signature()
