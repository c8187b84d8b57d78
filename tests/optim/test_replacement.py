"""Which optimizer may follow which on a compiled program."""

from __future__ import annotations

import pytest
import torch

import poptorch
from poptorch.compiler.request import update_settings
from poptorch.optim.replacement import check_update
from poptorch.optim.spec import describe
from poptorch.optim.unexpected import UnexpectedAttributes

P, T = poptorch.optim, torch.optim
INVALID = r"New optimizer is not a valid replacement\. "


def refuse(old, new, reason, options=None):
    with pytest.raises(poptorch.Error, match=INVALID + reason):
        check_update(describe(old, update_settings(options)), describe(new, update_settings(options)))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            lambda w: P.SGD(w, lr=0.1),
            lambda w: P.Adam(w, lr=0.1),
            "Can not replace optimizer of type SGD with new .* Adam",
        ),
        (lambda w: P.Adam(w, lr=0.1), lambda w: P.RMSprop(w, lr=0.1), "Can not replace optimizer of type Adam"),
        (lambda w: P.AdamW(w, lr=0.1), lambda w: P.LAMB(w, lr=0.1), "Adam modes do not match"),
        (lambda w: P.LAMB(w, lr=0.1), lambda w: P.LAMB(w, lr=0.1, bias_correction=False), "Adam modes do not match"),
        (lambda w: P.Adam(w, lr=0.1), lambda w: P.AdamW(w, lr=0.1), "Weight decay modes do not match"),
        (lambda w: T.RMSprop(w), lambda w: T.RMSprop(w, centered=True), "Adaptive modes do not match"),
        (
            lambda w: P.SGD(w, lr=0.1, momentum=0.5),
            lambda w: P.SGD(w, lr=0.1, momentum=0.5, use_combined_accum=True),
            "this has SGDAccumulatorAndMomentum",
        ),
        (
            lambda w: P.SGD(w, lr=0.1, momentum=0.5),
            lambda w: P.SGD(w, lr=0.1, momentum=0.5, velocity_accum_type=torch.float16),
            "this has SGDAccumulatorAndMomentum",
        ),
        (
            lambda w: P.SGD(w, lr=0.1),
            lambda w: P.SGD(w, lr=0.1, momentum=0.5),
            r"this does not require a velocity tensor, but other does\. Problem with momentums\. Can not replace",
        ),
        (
            lambda w: P.SGD(w, lr=0.1, momentum=0.5),
            lambda w: P.SGD(w, lr=0.1),
            r"this requires a velocity tensor.*Problem with momentums",
        ),
        (
            lambda w: P.SGD(w, lr=0.1),
            lambda w: P.SGD(w, lr=0.1, max_grad_norm=1.0),
            r"Clip norm settings do not match\.",
        ),
        (
            lambda w: P.SGD(w, lr=0.1, max_grad_norm=2.0),
            lambda w: P.SGD(w, lr=0.1, max_grad_norm=1.0),
            r"Clip norm settings at index 0 do not match\.",
        ),
        (
            lambda w: P.SGD(w, lr=0.1),
            lambda w: P.SGD(w, lr=0.1, loss_scaling=2.0),
            r"Problem with loss scaling\. Can not replace a constant value with a non constant value\.",
        ),
        (
            lambda w: P.SGD(w, lr=0.1, loss_scaling=2.0),
            lambda w: P.SGD(w, lr=0.1),
            r"Problem with loss scaling\. Can not replace a constant value with a non constant value\.",
        ),
        (
            lambda w: P.SGD([{"params": w[:1]}, {"params": w[1:]}], lr=0.1),
            lambda w: P.SGD(w, lr=0.1),
            "different number of specific tensors",
        ),
        (
            lambda w: T.SGD(w, lr=0.1, momentum=0.9),
            lambda w: T.SGD(w, lr=0.1, momentum=0.9, nesterov=True),
            r"Problem with nesterov\. Values are constant but do not match\.",
        ),
        (
            lambda w: T.Adam(w),
            lambda w: T.Adam(w, maximize=True),
            r"Problem with maximize\. Values are constant but do not match\.",
        ),
    ],
)
def test_refused(old, new, reason, weights):
    refuse(old(weights), new(weights), reason)


@pytest.mark.parametrize(
    ("make", "change", "label"),
    [
        (lambda w: P.Adam(w), {"lr": 0.5}, "learning rates"),
        (lambda w: P.SGD(w, lr=0.1), {"weight_decay": 0.5}, "weight decays"),
        (lambda w: P.SGD(w, lr=0.1), {"momentum": 0.5}, "momentums"),
        (
            lambda w: P.SGD(w, lr=0.1, momentum=0.1, use_combined_accum=True),
            {"velocity_scaling": 2.0},
            "velocity scalings",
        ),
        (lambda w: P.Adam(w, lr=0.1), {"betas": (0.5, 0.999)}, "beta1s"),
        (lambda w: T.Adam(w, lr=0.1), {"betas": (0.9, 0.5)}, "beta2s"),
        (lambda w: P.AdamW(w, lr=0.1), {"eps": 1e-3}, "eps"),
        (lambda w: P.LAMB(w, lr=0.1), {"max_weight_norm": 1.0}, "mwn"),
        (lambda w: T.RMSprop(w, lr=0.1), {"alpha": 0.5}, "alphas"),
    ],
)
def test_constants_cannot_change(make, change, label, weights):
    optimizer = make(weights)
    before = describe(optimizer, None)
    optimizer.param_groups[0].update(change)
    with pytest.raises(
        poptorch.Error, match=rf"{INVALID}.*Problem with {label}\. Values are constant but do not match"
    ):
        check_update(before, describe(optimizer, None))


def test_native_attribute_leaving_its_special_value(weights):
    optimizer = T.AdamW(weights, lr=0.1)
    before = describe(optimizer, None)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    with pytest.raises(poptorch.Error, match=r"Problem with weight decays\. Can not replace a constant value"):
        check_update(before, describe(optimizer, None))


def test_bad_range_is_refused_too(weights):
    optimizer = P.LAMB(weights, lr=0.1)
    before = describe(optimizer, None)
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(poptorch.Error, match="Negative learning rate"):
        check_update(before, describe(optimizer, None))


@pytest.mark.parametrize("kind", [P.SGD, P.Adam, P.AdamW, P.RMSprop, P.LAMB])
@pytest.mark.parametrize("marked", [False, True])
def test_variables_can_change(kind, marked, weights):
    optimizer = kind(weights, lr=0.1) if marked else kind(weights, lr=0.1, loss_scaling=1.0, weight_decay=0.0)
    if marked:
        for name in ("loss_scaling", "weight_decay"):
            optimizer.variable_attrs.markAsVariable(name)
    before = describe(optimizer, None)
    optimizer.loss_scaling = 2.0
    optimizer.param_groups[0].update(lr=0.5, weight_decay=0.25)
    after = check_update(before, describe(optimizer, None))
    assert after.loss_scaling.value == 2.0
    assert after.groups[0].values.numbers["lr"].value == 0.5
    assert after.groups[0].variables == describe(optimizer, None).groups[0].variables
    assert after.signature() == before.signature()


def test_compiled_membership_stays(weights):
    two = P.SGD([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.5}], lr=0.1)
    one = P.SGD(weights[:2], lr=0.1)
    after = check_update(describe(one, None), describe(two, None))
    assert len(after.groups) == 1
    swapped = P.SGD([{"params": weights[2:]}, {"params": weights[:2], "lr": 0.7}], lr=0.2)
    after = check_update(describe(two, None), describe(swapped, None))
    assert after.groups[0].parameters == tuple(weights[:2])
    assert [group.variables["scaledLearningRate0"] for group in after.groups] == [0.2, 0.7]


def test_native_and_ours_replace_each_other(weights):
    ours, native = P.Adam(weights, lr=0.1), T.Adam(weights, lr=0.2)
    assert check_update(describe(ours, None), describe(native, None)).groups[0].variables["learningRate"] == 0.2
    assert check_update(describe(native, None), describe(ours, None)).groups[0].variables["learningRate"] == 0.1


def test_half_accumulation_after_compilation(weights):
    before = describe(P.Adam(weights, lr=0.1), update_settings(poptorch.Options()))
    half = P.Adam(weights, lr=0.1, accum_type=torch.float16)
    with pytest.raises(ValueError, match="the executable is already compiled"):
        check_update(before, describe(half, update_settings(poptorch.Options())))
    running = poptorch.Options()
    running.Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.Running)
    check_update(describe(P.Adam(weights, lr=0.1), update_settings(running)), describe(half, update_settings(running)))


def test_ignored_changes_are_mentioned(weights, caplog):
    before = describe(P.RMSprop(weights, lr=0.1), None)
    after = P.RMSprop(weights, lr=0.1, use_tf_variant=True, first_order_momentum_accum_type=torch.float16)
    merged = check_update(before, describe(after, None))
    assert merged.groups[0].rule == before.groups[0].rule
    assert "tf_variant=True is ignored" in caplog.text
    assert "first_type=torch.float16 is ignored" in caplog.text


class TestUnexpectedAttributes:
    def test_reported_once(self, weights, caplog):
        optimizer = P.SGD(weights, lr=0.1)
        watcher = UnexpectedAttributes()
        watcher.check(optimizer, relaxed=False)
        optimizer.lr = 0.5
        optimizer.momenta = 0
        optimizer.defaults["warmth"] = 1
        optimizer.param_groups[0]["warmth"] = 0.1
        optimizer.param_groups[0]["velocity_scaling"] = 0.1
        for _ in range(2):
            watcher.check(optimizer, relaxed=False)
        assert [record.getMessage() for record in caplog.records] == [
            "Ignoring unexpected default group variable in SGD2 optimizer: ['warmth']",
            "Ignoring unexpected group 0 attribute in SGD2 optimizer: ['velocity_scaling', 'warmth']",
            "Ignoring unexpected optimizer attribute in SGD2 optimizer: ['lr', 'momenta']",
        ]

    def test_present_from_the_start_is_fine(self, weights, caplog):
        optimizer = T.SGD(weights, lr=0.1)
        optimizer.extra = 1
        optimizer.param_groups[0]["initial_lr"] = 0.1
        watcher = UnexpectedAttributes()
        assert watcher.check(optimizer, relaxed=False) == watcher.check(optimizer, relaxed=False) == []
        assert not caplog.records

    def test_native_replaced_by_ours(self, weights, caplog):
        watcher = UnexpectedAttributes()
        watcher.check(T.SGD(weights, lr=0.1), relaxed=False)
        watcher.check(P.SGD(weights, lr=0.1), relaxed=False)
        watcher.check(P.SGD(weights, lr=0.1, use_combined_accum=True), relaxed=False)
        assert not caplog.records

    def test_relaxed_goes_to_debug(self, weights, caplog):
        optimizer = P.LAMB(weights, lr=0.1)
        watcher = UnexpectedAttributes()
        watcher.check(optimizer, relaxed=True)
        optimizer.extra = 1
        assert watcher.check(optimizer, relaxed=True) == [
            "Ignoring unexpected optimizer attribute in LAMB optimizer: ['extra']"
        ]
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
