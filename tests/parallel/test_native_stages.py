"""Stages of a model in native code: the interpreter's results, in whatever order and on however many replicas."""

from __future__ import annotations

import pytest
from parallel_models import STRATEGIES, Convolutions, Language, Perceptron, infer, make_options, train_calmly

from closeness import assert_close_sums
from poptorch.optim import SGD

pytestmark = pytest.mark.timeout(600)  # a C++ compiler at work


def assert_close(left, right):
    """Gradients are sums over 8 micro-batches of 8 rows (of 4 tokens) in 2 replicas; four updates.

    Activations and the weights of norms are of size 1.
    """
    assert_close_sums(left, right, terms=512, steps=4, scale=1.0)


def both_levels(monkeypatch, run):
    """What the interpreter and native code give for the same work, and the executor of the latter."""
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    expected = run()
    monkeypatch.setenv("POPTORCH_CODEGEN", "native")
    got = run()
    stages = got[-1].executable.code.stages
    assert all(stage.code.source.startswith("# native") for stage in stages)
    return expected[:-1], got[:-1]


def check_training(monkeypatch, kind, strategy, replicas=1):
    ipus, make = STRATEGIES[strategy]

    def run():
        return train_calmly(kind, ipus, make_options(make(), iterations=2, replicas=replicas), optimizer=SGD)

    assert_close(*both_levels(monkeypatch, run))


def test_a_pipeline_with_replicas(monkeypatch):
    check_training(monkeypatch, Convolutions, "pipelined", replicas=2)


@pytest.mark.slow
def test_a_pipeline_that_shares_weights(monkeypatch):
    check_training(monkeypatch, Language, "pipelined")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sharded", "serial phased", "parallel phased"])
def test_other_strategies(monkeypatch, strategy):
    check_training(monkeypatch, Perceptron, strategy)


@pytest.mark.slow
def test_training_of_replicas_in_one_stage(monkeypatch):
    options = make_options(iterations=2, replicas=2)
    assert_close(*both_levels(monkeypatch, lambda: train_calmly(Convolutions, None, options, optimizer=SGD)))


def test_inference(monkeypatch):
    ipus, make = STRATEGIES["pipelined"]

    def run():
        return infer(Language, ipus, make_options(make(), iterations=5, accumulation=1, replicas=2))

    assert_close(*both_levels(monkeypatch, run))
