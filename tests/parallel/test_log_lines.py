"""The lines of the log that tools look for."""

from __future__ import annotations

import pytest
from parallel_models import STRATEGIES, Perceptron, infer, make_options, train

import poptorch


@pytest.fixture
def log(capfd):
    poptorch.setLogLevel("DEBUG")
    yield lambda: "".join(capfd.readouterr())
    poptorch.setLogLevel("WARN")


def test_pipelining(log):
    infer(Perceptron, (0, 1, 2, 3), make_options(poptorch.PipelinedExecution(), iterations=4, accumulation=1))
    text = log()
    assert "enablePipelining set to value 1" in text
    assert "Tanh:0 [float32(2, 8), mode(Pipelined), ipu(0), stage(0)]" in text
    assert "Tanh:0/3 [float32(2, 8), mode(Pipelined), ipu(3), stage(3)]" in text


def test_one_ipu_and_shards_are_not_pipelined(log):
    infer(Perceptron, None, make_options(poptorch.PipelinedExecution(), accumulation=1))
    assert "enablePipelining set to value 0" in log()
    infer(Perceptron, (0, 1, 2, 3), make_options(poptorch.ShardedExecution(), accumulation=1))
    text = log()
    assert "enablePipelining set to value 0" in text
    assert "mode(Sharded), ipu(2), stage(2)]" in text


@pytest.mark.parametrize(("name", "stages"), [("serial phased", 1), ("parallel phased", 2)])
def test_phases(log, name, stages):
    ipus, make = STRATEGIES[name]
    options = make_options(make(), accumulation=1)
    options.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
    train(Perceptron, ipus, options, calls=1)
    text = log()
    assert f"executionPhaseSettings.stages set to value {stages}" in text
    assert f"executionPhaseSettings.phases set to value {2 if stages == 1 else 4}" in text
    assert "location_activation set to value useOnChipStorage(False)" in text
    assert "location_weight set to value" not in text
    assert ("set serial_phases_execution to value true" in text) is (stages == 1)
    assert "mode(Phased), ipu(1), phase(1)]" in text
