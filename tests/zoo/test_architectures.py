"""Every architecture of the zoo: inference and training equal PyTorch's."""

from __future__ import annotations

from against_eager import check_inference, check_training
from zoo_all import ARCHITECTURES
from zoo_architecture import Architecture


def test_the_zoo_is_large_enough() -> None:
    assert len(ARCHITECTURES) >= 25


def test_data_and_cuts_are_usable(architecture: Architecture) -> None:
    inputs, targets = architecture.batch(rows=3)
    assert {t.shape[0] for t in (*inputs, *targets)} == {3}, "every tensor has one row for each sample"
    modules = dict(architecture.network().named_modules())
    assert not set(architecture.cuts) - set(modules)


def test_inference_equals_eager(architecture: Architecture) -> None:
    inputs, _ = architecture.batch()
    check_inference(architecture.network().eval(), *inputs)


def test_five_steps_of_training_equal_eager_sgd(architecture: Architecture) -> None:
    batches = [(*inputs, *targets) for inputs, targets in (architecture.batch(seed=s) for s in range(5))]
    losses = check_training(architecture.trainable(), batches, architecture.learning_rate)
    assert len(set(losses)) == 5, "the five losses differ, so equal ones would be noticed"
