"""With any strategy, with and without replicas: the numbers of the model in one piece."""

from __future__ import annotations

import pytest
from parallel_models import STRATEGIES, Convolutions, Feedback, Language, Perceptron, infer, make_options, with_replicas
from parallel_models import train_calmly as train

import poptorch
from closeness import assert_close_sums

MAIN = ("pipelined", "sharded", "serial phased", "parallel phased")


def assert_same(left, right):
    """Gradients are sums over 8 micro-batches of 8 rows (of 4 tokens) in 2 replicas; four updates.

    Activations and the weights of norms are of size 1.
    """
    assert_close_sums(left, right, terms=512, steps=4, scale=1.0)


@pytest.fixture(scope="module")
def references():
    """Results in one piece, computed once per model and number of replicas."""
    known = {}

    def find(mode, kind, replicas):
        key = mode, kind, replicas
        if key not in known:
            if mode == "train":
                known[key] = train(kind, None, make_options(iterations=2, replicas=replicas))[:2]
            else:
                known[key] = infer(kind, None, make_options(iterations=5, accumulation=1, replicas=replicas))[0]
        return known[key]

    return find


@with_replicas(MAIN)
def test_training(kind, strategy, replicas, references):
    ipus, make = STRATEGIES[strategy]
    outputs, state, executor = train(kind, ipus, make_options(make(), iterations=2, replicas=replicas))
    expected_outputs, expected_state = references("train", kind, replicas)
    assert len(executor.plan.parts) > 1
    assert_same(outputs, expected_outputs)
    assert_same(state, expected_state)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name not in MAIN])
@pytest.mark.parametrize("kind", [Perceptron, Convolutions], ids=lambda kind: kind.__name__)
def test_training_with_other_divisions(kind, strategy, references):
    test_training(kind, strategy, 1, references)


@with_replicas(MAIN)
def test_inference(kind, strategy, replicas, references):
    ipus, make = STRATEGIES[strategy]
    outputs, executor = infer(kind, ipus, make_options(make(), iterations=5, accumulation=1, replicas=replicas))
    assert len(executor.plan.parts) > 1
    assert_same(outputs, references("infer", kind, replicas))


@pytest.mark.parametrize("strategy", MAIN)
def test_a_buffer_that_flows_back(strategy, references):
    ipus, make = STRATEGIES[strategy]
    outputs, state, executor = train(Feedback, ipus, make_options(make(), iterations=2))
    expected_outputs, expected_state = references("train", Feedback, 1)
    assert [(c.reader, c.writer) for c in executor.plan.carried] == [(0, 3)]
    assert_same(outputs, expected_outputs)
    assert_same(state, expected_state)


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("kind", [Convolutions, Language], ids=lambda kind: kind.__name__)
def test_recomputation_never_changes_results(kind, mode, references):
    options = make_options(poptorch.PipelinedExecution(), iterations=2, autoRecomputation=mode)
    outputs, state, _ = train(kind, (0, 1, 2, 3), options)
    expected_outputs, expected_state = references("train", kind, 1)
    assert_same(outputs, expected_outputs)
    assert_same(state, expected_state)


@pytest.mark.parametrize("mode", [1, 2, 4])
def test_recomputation_on_one_ipu(mode, references):
    outputs, state, executor = train(Convolutions, None, make_options(iterations=2, autoRecomputation=mode))
    expected_outputs, expected_state = references("train", Convolutions, 1)
    assert "recomputed" in str(executor.program)
    assert_same(outputs, expected_outputs)
    assert_same(state, expected_state)


@pytest.mark.parametrize("mode", [poptorch.OutputMode.Sum, poptorch.OutputMode.Final, poptorch.OutputMode.EveryN])
def test_output_modes(mode):
    results = []
    for ipus, strategy in ((None, None), ((0, 1, 2, 3), poptorch.PipelinedExecution())):
        options = make_options(strategy, iterations=4, replicas=2, accumulation=7)
        options.outputMode(mode, 2) if mode is poptorch.OutputMode.EveryN else options.outputMode(mode)
        results.append(train(Perceptron, ipus, options, calls=1)[0])
    assert_same(*results)


def test_anchored_values():
    found = []
    for ipus, strategy in ((None, None), ((0, 1, 2, 3), poptorch.PipelinedExecution())):
        options = make_options(strategy, iterations=2)
        options.anchorTensor("grad", "Gradient___layers.0.weight")
        options.anchorTensor("updated", "UpdatedVar___layers.3.weight")
        executor = train(Perceptron, ipus, options)[2]
        found.append([executor.getAnchoredTensor(name) for name in ("grad", "updated")])
    assert_same(*found)


def test_counters_have_the_lengths_of_the_sequential_run():
    lengths = []
    for ipus, strategy in ((None, None), ((0, 1, 2, 3), poptorch.PipelinedExecution())):
        executor = train(Perceptron, ipus, make_options(strategy, iterations=2))[2]
        lengths.append({k: [len(x) for x in v] for k, v in executor.getPerfCounters().items()})
        assert executor.getLatency()[0] > 0
    assert lengths[0] == lengths[1]
