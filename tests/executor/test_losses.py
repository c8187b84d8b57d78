"""Finding the loss, reducing gradients, choosing what moves (spec: executor §8)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch
from closeness import assert_close_sums
from poptorch import ReductionType


class Net(nn.Module):
    """One linear layer; ``loss`` decides what is returned and what is trained."""

    def __init__(self, loss, inputs=3, outputs=4):
        super().__init__()
        torch.manual_seed(3)
        self.fc = nn.Linear(inputs, outputs)
        self.loss = loss

    def forward(self, x, target):
        return self.loss(self.fc(x), target)


X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
REAL = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 1, 2, 3, 0, 1])
SIGNS = torch.where(REAL > 0, 1.0, -1.0)
UNIT = torch.sigmoid(REAL)


def train_both(loss, target, steps=3, lr=0.1, scalar=lambda v: v):
    """Train a wrapped and a plain copy; returns both models and the last result of the wrapped one."""
    model = Net(loss)
    reference = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=lr))
    optimizer = torch.optim.SGD(reference.parameters(), lr=lr)
    for _ in range(steps):
        result = executor(X, target)
        optimizer.zero_grad()
        expected = reference(X, target)
        scalar(expected).backward()
        optimizer.step()
    return model, reference, result, expected


def same_weights(model, reference):
    assert_close_sums(model.fc.weight.data.clone(), reference.fc.weight.data, terms=24, steps=3)


BUILT_IN = {
    "l1": (nn.L1Loss(), REAL),
    "mse": (nn.MSELoss(), REAL),
    "mse sum": (nn.MSELoss(reduction="sum"), REAL),
    "smooth l1": (F.smooth_l1_loss, REAL),
    "soft margin": (nn.SoftMarginLoss(), SIGNS),
    "hinge embedding": (F.hinge_embedding_loss, SIGNS),
    "margin ranking": (lambda y, t: F.margin_ranking_loss(y[:, 0], y[:, 1], t[:, 0]), SIGNS),
    "cosine embedding": (lambda y, t: F.cosine_embedding_loss(y, t, torch.ones(6)), REAL),
    "triplet margin": (lambda y, t: F.triplet_margin_loss(y, t, -t), REAL),
    "multi-label soft margin": (nn.MultiLabelSoftMarginLoss(), (REAL > 0).float()),
    "bce": (lambda y, t: F.binary_cross_entropy(torch.sigmoid(y), t), UNIT),
    "bce with logits": (nn.BCEWithLogitsLoss(), UNIT),
    "kl": (lambda y, t: F.kl_div(F.log_softmax(y, -1), t.softmax(-1), reduction="batchmean"), REAL),
    "poisson nll": (nn.PoissonNLLLoss(), UNIT),
    "nll": (lambda y, t: F.nll_loss(F.log_softmax(y, -1), t), CLASSES),
    "nll of higher rank": (
        lambda y, t: F.nll_loss(F.log_softmax(y.view(2, 3, 4).transpose(1, 2), 1), t.view(2, 3)),
        CLASSES,
    ),
    "cross entropy": (nn.CrossEntropyLoss(), CLASSES),
    "ctc": (
        lambda y, t: F.ctc_loss(
            F.log_softmax(y.view(6, 1, 4), -1), torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2])
        ),
        REAL,
    ),
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_losses_are_found_and_train_as_in_torch(name):
    loss, target = BUILT_IN[name]
    model, reference, result, expected = train_both(loss, target, steps=2)
    assert_close_sums(result, expected.detach(), terms=24, steps=3)
    same_weights(model, reference)


class TestFinding:
    def refused(self, loss, phrase, target=REAL):
        model = Net(loss)
        executor = poptorch.trainingModel(model)
        with pytest.raises(poptorch.Error, match=phrase) as error:
            executor(X, target)
        assert not executor.isCompiled()
        inference = poptorch.inferenceModel(Net(loss))
        inference(X, target)
        model.loss = nn.MSELoss()
        return error

    def test_no_loss(self):
        self.refused(lambda y, t: ((y - t) ** 2).mean(), "Couldn't find a loss in graph")

    def test_two_losses(self):
        error = self.refused(
            lambda y, t: (F.mse_loss(y, t), F.l1_loss(y, t)), "Multiple independent losses found in graph"
        )
        assert "Wrap final graph loss in poptorch.identity_loss" in str(error.value)

    def test_two_losses_added(self):
        def loss(y, t):
            return F.nll_loss(F.log_softmax(y, -1), t) + F.nll_loss(F.log_softmax(-y, -1), t)

        self.refused(loss, "Multiple independent losses found in graph", CLASSES)
        model, reference, *_ = train_both(lambda y, t: poptorch.identity_loss(loss(y, t), reduction="mean"), CLASSES)
        same_weights(model, reference)

    def test_a_training_model_works_after_a_refusal(self):
        model = Net(lambda y, t: y.sum())
        executor = poptorch.trainingModel(model)
        with pytest.raises(poptorch.Error, match="Couldn't find a loss"):
            executor(X, REAL)
        executor.destroy()
        model.loss = nn.MSELoss()
        poptorch.trainingModel(model)(X, REAL)

    def test_an_intermediate_loss_is_an_ordinary_value(self):
        def loss(y, t):
            first = F.mse_loss(y, t)
            return poptorch.identity_loss(first * 2 + y.abs().mean(), reduction="sum"), first

        model, reference, result, expected = train_both(loss, REAL, scalar=lambda v: v[0])
        same_weights(model, reference)
        for got, wanted in zip(result, expected, strict=True):
            assert_close_sums(got, wanted.detach(), terms=24, steps=3)

    @pytest.mark.parametrize(("reduction", "apply"), [("sum", torch.sum), ("mean", torch.mean), ("none", lambda v: v)])
    def test_identity_loss_on_an_intermediate_value(self, reduction, apply):
        def loss(y, t):
            inner = poptorch.identity_loss((y - t).abs(), reduction=reduction)
            return inner, poptorch.identity_loss(inner.sum(), reduction="none")

        model = Net(loss)
        before = Net(loss)
        inner, final = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))(X, REAL)
        expected = apply((before.fc(X) - REAL).abs()).detach()
        assert inner.numel() == expected.numel()
        assert_close_sums(inner.reshape(expected.shape), expected, terms=4)
        assert_close_sums(final, expected.sum(), terms=24)
        assert not torch.equal(model.fc.weight, before.fc.weight)

    def test_the_loss_need_not_be_returned_or_last(self):
        def hidden(y, t):
            F.mse_loss(y, t)
            return y

        def first(y, t):
            return {"loss": F.mse_loss(y, t), "y": y, "more": (y, y + 1)}

        results = []
        for loss in (hidden, first, F.mse_loss):
            model = Net(loss)
            poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))(X, REAL)
            results.append(model.fc.weight.detach().clone())
        assert_close_sums(results[1:], [results[0]] * 2, terms=X.numel())

    def test_a_loss_without_reduction_gets_a_gradient_of_ones(self):
        def loss(y, t):
            return poptorch.identity_loss((y - t) ** 2, reduction="none")

        model, reference, result, _ = train_both(loss, REAL, lr=0.01, scalar=torch.sum)
        assert result.shape == (6, 4)
        same_weights(model, reference)
        model, reference, result, _ = train_both(nn.MSELoss(reduction="none"), REAL, lr=0.01, scalar=torch.sum)
        assert result.shape == (6, 4)
        same_weights(model, reference)

    def test_unknown_reductions(self):
        with pytest.raises(AssertionError, match="Unsupported reduction type!"):
            poptorch.identity_loss(torch.ones(2), reduction="median")
        with pytest.raises(AssertionError, match="Unsupported reduction type!"):
            poptorch.inferenceModel(Net(lambda y, t: poptorch.identity_loss(y, reduction="x")))(X, REAL)

    def test_l1_inside_a_wrapped_loss_reaches_its_target(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.value = nn.Parameter(torch.tensor([0.0, 0.0]))

            def forward(self, target):
                return self.value, poptorch.identity_loss(F.l1_loss(self.value, target) * 2, reduction="sum")

        model = Model()
        options = poptorch.Options().deviceIterations(100)
        executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.01))
        target = torch.tensor([0.5, -0.5]).repeat(100)
        for _ in range(2):
            executor(target)
        torch.testing.assert_close(model.value.data, torch.tensor([0.5, -0.5]), atol=0.02, rtol=0)

    def test_inference_computes_losses_as_values(self):
        loss = poptorch.inferenceModel(Net(lambda y, t: (F.mse_loss(y, t), F.l1_loss(y, t))))(X, REAL)
        model = Net(None)
        assert_close_sums(loss[0], F.mse_loss(model.fc(X), REAL).detach(), terms=24)
        assert_close_sums(loss[1], F.l1_loss(model.fc(X), REAL).detach(), terms=24)


def _one_weight(loss, strict=False, target=REAL):
    """The gradient of the layer's weight in a wrapped model, found with one step of SGD."""
    model = Net(loss)
    before = model.fc.weight.detach().clone()
    options = poptorch.Options().strictCompatibility(strict)
    poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=1.0))(X, target)
    return before - model.fc.weight.detach()


def _in_torch(loss, target=REAL):
    model = Net(None)
    loss(model.fc(X), target).backward()
    return model.fc.weight.grad


def _same_gradient(given, expected):
    assert_close_sums(given, expected, terms=X.numel(), steps=4, scale=max(1.0, expected.abs().max().item()))


class TestWhichValueIsTheLoss:
    def test_a_metric_without_gradient_is_no_loss(self):
        def measured(y, t):
            with torch.no_grad():
                metric = F.l1_loss(y, t)
            return F.mse_loss(y, t), metric

        def detached(y, t):
            return F.mse_loss(y, t), F.l1_loss(y.detach(), t)

        def beside_a_mark(y, t):
            with torch.no_grad():
                metric = F.l1_loss(y, t)
            return poptorch.identity_loss(F.mse_loss(y, t), reduction="none"), metric

        for loss in (measured, detached, beside_a_mark):
            _same_gradient(_one_weight(loss), _in_torch(F.mse_loss))

    def test_a_metric_alone_is_no_loss(self):
        def loss(y, t):
            with torch.no_grad():
                metric = F.l1_loss(y, t)
            return metric, y.sum()

        with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
            _one_weight(loss)

    def test_identity_loss_wins_over_built_in_ones(self):
        def loss(y, t):
            return poptorch.identity_loss((y * t).mean(), reduction="none"), F.l1_loss(y, t)

        _same_gradient(_one_weight(loss), _in_torch(lambda y, t: (y * t).mean()))

    def test_two_identity_losses_are_two_losses(self):
        def loss(y, t):
            return poptorch.identity_loss(y, reduction="mean"), poptorch.identity_loss(y * t, reduction="mean")

        with pytest.raises(poptorch.Error, match="Graph must have one final loss"):
            _one_weight(loss)

    def test_unreduced_losses_inside_a_library_are_steps(self):
        def loss(y, t):
            return -torch.distributions.Bernoulli(logits=y).log_prob((t > 0).float()).mean()

        _same_gradient(_one_weight(loss), _in_torch(loss))

    def test_unreduced_losses_do_not_count_beside_reduced_ones(self):
        def loss(y, t):
            each = F.mse_loss(y, t, reduction="none")
            return F.l1_loss(y, t), each.mean(-1)

        _same_gradient(_one_weight(loss), _in_torch(F.l1_loss))

    def test_a_loss_of_one_value_says_by_its_reduction_that_it_is_a_step(self):
        def loss(y, t):
            step = F.mse_loss(y.sum(), t.sum(), reduction="none")
            return F.l1_loss(y, t), step

        _same_gradient(_one_weight(loss), _in_torch(F.l1_loss))

    @pytest.mark.parametrize("in_place", [False, True])
    def test_a_returned_scalar_that_follows_from_the_mark_is_the_loss(self, in_place):
        def loss(y, t):
            value = F.cross_entropy(y, t, reduction="sum")
            if in_place:
                value /= 7
                return value
            return value / 7

        _same_gradient(_one_weight(loss, target=CLASSES), _in_torch(loss, CLASSES))

    def test_also_after_an_identity_loss_and_among_other_results(self):
        def loss(y, t):
            return {"y": y, "loss": poptorch.identity_loss(F.mse_loss(y, t, reduction="sum"), reduction="none") / 5}

        _same_gradient(_one_weight(loss), _in_torch(lambda y, t: F.mse_loss(y, t, reduction="sum") / 5))

    def test_strict_compatibility_starts_at_the_mark(self):
        def loss(y, t):
            return F.mse_loss(y, t, reduction="sum") / 5

        _same_gradient(_one_weight(loss, strict=True), _in_torch(lambda y, t: F.mse_loss(y, t, reduction="sum")))

    def test_a_returned_mark_is_the_loss_whatever_follows(self):
        def loss(y, t):
            value = F.mse_loss(y, t)
            return value, value.exp(), value * 3

        _same_gradient(_one_weight(loss), _in_torch(F.mse_loss))

    def test_detached_values_do_not_follow(self):
        def loss(y, t):
            return F.mse_loss(y, t).detach() * 3

        _same_gradient(_one_weight(loss), _in_torch(F.mse_loss))

    def test_two_returned_scalars_that_follow_are_ambiguous(self):
        def loss(y, t):
            value = F.mse_loss(y, t)
            return value * 2, value * 3

        with pytest.raises(poptorch.Error, match="Multiple independent losses found in graph") as error:
            _one_weight(loss)
        assert "2 returned values follow from it" in str(error.value)

    def test_one_line_says_which_value_it_is(self, log):
        def loss(y, t):
            value = F.mse_loss(y, t)
            return value / 2

        line = loss.__code__.co_firstlineno + 2
        _one_weight(loss)
        said = [text for text in log.lines if text.startswith("Back-propagation starts")]
        assert said == [
            "Back-propagation starts at result 0 of the model, which follows from the mse_loss, "
            f"computed at {__file__}:{line}"
        ]


class TestReductions:
    def trained(self, accumulation, lr, reduction=None, replicas=1, strategy=None):
        model = Net(nn.MSELoss())
        options = poptorch.Options().replicationFactor(replicas)
        options.Training.gradientAccumulation(accumulation)
        if reduction is not None:
            options.Training.accumulationAndReplicationReductionType(reduction)
        if strategy is not None:
            options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
        executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=lr))
        for _ in range(3):
            loss = executor(X, REAL)
        return model.fc.weight.detach().clone(), loss

    def test_the_pinned_equivalences(self):
        plain, _ = self.trained(1, 0.1)
        for value, _ in (
            self.trained(2, 0.1, ReductionType.Mean),
            self.trained(2, 0.1),
            self.trained(2, 0.05, ReductionType.Sum),
            self.trained(3, 0.1, replicas=2),
            self.trained(1, 0.05, ReductionType.Sum, replicas=2),
            self.trained(2, 0.1, strategy=poptorch.MeanReductionStrategy.Post),
            self.trained(2, 0.1, strategy=poptorch.MeanReductionStrategy.Running),
        ):
            assert_close_sums(value, plain, terms=24, steps=3)

    def test_returned_losses_are_those_of_the_micro_batches(self):
        _, mean = self.trained(2, 0.0, ReductionType.Mean)
        _, total = self.trained(2, 0.0, ReductionType.Sum)
        model = Net(None)
        expected = F.mse_loss(model.fc(X[3:]), REAL[3:]).detach()
        assert_close_sums(mean, expected, terms=12)
        assert_close_sums(total, expected, terms=12)

    @pytest.mark.parametrize("wrong", [ReductionType.NoReduction, "Mean", 1])
    def test_other_reductions_are_refused(self, wrong):
        with pytest.raises(ValueError, match="must be set to") as error:
            poptorch.Options().Training.accumulationAndReplicationReductionType(wrong)
        assert "Mean" in str(error.value)
        assert "Sum" in str(error.value)


class TestWhatMoves:
    def test_frozen_and_trained_parameters_in_one_expression(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Parameter(torch.ones(2))
                self.b = nn.Parameter(torch.ones(2), requires_grad=False)

            def forward(self, x):
                return poptorch.identity_loss((self.a * self.b * x).sum(), reduction="none")

        model = Model()
        poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))(torch.ones(2))
        assert model.b.tolist() == [1, 1]
        assert_close_sums(model.a.data, torch.full((2,), 0.9), terms=2)

    def test_all_parameters_frozen(self):
        model = Net(nn.MSELoss())
        model.requires_grad_(False)
        before = model.fc.weight.clone()
        executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(2):
            executor(X, REAL)
        assert torch.equal(model.fc.weight, before)

    def test_fine_tuning_changes_exactly_one_layer(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.norm, self.head = nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 4)

            def forward(self, x, t):
                return F.mse_loss(self.head(self.norm(self.body(x))), t)

        model = Model()
        before = copy.deepcopy(model.state_dict())
        executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.head.parameters(), lr=0.1))
        executor(X, REAL)
        changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        assert changed == {"head.weight", "head.bias"}

    def test_host_gradients_stay_untouched(self):
        model = Net(nn.MSELoss())
        executor = poptorch.trainingModel(model)
        executor(X, REAL)
        assert model.fc.weight.grad is None
