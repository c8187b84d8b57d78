"""The log phrases that tools and tests rely on, and their order (spec: executor §19)."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import poptorch

UP, DOWN = "Writing weights from host to IPU memory", "Writing weights from IPU to host"
STATE_UP, STATE_DOWN = (
    "Writing optimiser state tensors from host to IPU memory",
    "Writing optimiser state tensors from IPU to host.",
)


@pytest.fixture
def running(linear, batch, log):
    """A training executor with a seed and an optimizer that has state, after its first call."""
    optimizer = poptorch.optim.SGD(linear.parameters(), lr=0.1, momentum=0.9, use_combined_accum=False)
    executor = poptorch.trainingModel(linear, poptorch.Options().randomSeed(7), optimizer)
    executor(*batch)
    return executor, linear, optimizer


def test_first_call(running, log):
    assert log.order("Acquired 1 IPU(s): running on device Id", "Attached to device", "Finished Poplar compilation", UP)
    assert "Setting random seed to 7" in log.text
    assert log.order("Updating graph optimizer", "Updating group 0 optimizer")
    assert DOWN not in log.text


def test_a_plain_call_moves_nothing(running, batch, log):
    log.clear()
    running[0](*batch)
    for phrase in ("Writing", "Reading", "Setting", "Updating", "Implicit", "Attached"):
        assert phrase not in log.text


def test_looking_at_weights(running, log):
    log.clear()
    list(running[1].parameters())
    assert log.order("Implicit copyWeightsToHost()", DOWN)
    log.clear()
    list(running[1].parameters())
    assert log.text == ""


def test_explicit_copies(running, log):
    executor = running[0]
    log.clear()
    executor.copyWeightsToHost()
    assert DOWN in log.text
    assert "Implicit" not in log.text
    executor.copyWeightsToDevice()
    assert UP in log.text


def test_detach_and_the_next_call(running, batch, log):
    executor = running[0]
    log.clear()
    executor.detachFromDevice()
    for phrase in ("Reading random seed", "Reading RNG state", DOWN, STATE_DOWN):
        assert log.order(phrase, "Detached from device"), phrase
    assert UP not in log.text
    log.clear()
    executor(*batch)
    for phrase in (UP, STATE_UP, "Setting random seed to 7", "Setting RNG state", "Updating group 0 optimizer"):
        assert log.order("Attached to device", phrase), phrase
    log.clear()
    executor(*batch)
    assert "Writing" not in log.text


def test_random_state(running, log):
    executor = running[0]
    log.clear()
    state = executor.rng_state
    assert log.order("Reading random seed", "Reading RNG state")
    log.clear()
    assert executor.rng_state == state
    assert log.text == ""
    executor.rng_state = state
    assert log.order("Setting random seed to 7", "Setting RNG state")


def test_optimizer_state(running, log):
    optimizer = running[2]
    log.clear()
    optimizer.state_dict()
    assert STATE_DOWN in log.text
    log.clear()
    optimizer.state_dict()
    assert log.lines == ["Using cached optimiser state dict"]


def test_inference_follows_training(running, batch, log):
    executor, model, _ = running
    inference = poptorch.inferenceModel(model)
    inference(batch[0])
    log.clear()
    executor(*batch)
    inference(batch[0])
    assert log.order("Implicit copyWeightsToHost()", DOWN, "Implicit copyWeightsToDevice()", UP)
    log.clear()
    inference(batch[0])
    assert "Implicit" not in log.text
    assert "Writing" not in log.text


def test_connection_types(log):
    poptorch.inferenceModel(nn.ReLU())(torch.ones(1))
    assert log.order("Attached to device", "Finished Poplar compilation")
    log.clear()
    options = poptorch.Options().connectionType(poptorch.ConnectionType.OnDemand)
    poptorch.inferenceModel(nn.ReLU(), options)(torch.ones(1))
    assert log.order("Finished Poplar compilation", "Attached to device")


def test_options_are_echoed(log):
    poptorch.inferenceModel(nn.ReLU(), poptorch.Options().deviceIterations(3))(torch.ones(3))
    assert "poptorch.Options set device_iterations to value 3" in log.text


@pytest.mark.parametrize(("use", "word"), [(True, "Enabled"), (False, "Disabled")])
def test_explicit_ipu_model(use, word, log):
    poptorch.inferenceModel(nn.ReLU(), poptorch.Options().useIpuModel(use))(torch.ones(1))
    records = [r for r in log.records if r.getMessage() == f"From the user configuration: Ipu model: {word}"]
    assert [r.levelno for r in records] == [logging.INFO]


def test_caching_does_not_work_with_the_ipu_model(log, tmp_path):
    options = poptorch.Options().useIpuModel(True).enableExecutableCaching(str(tmp_path))
    poptorch.inferenceModel(nn.ReLU(), options)(torch.ones(1))
    assert "enableExecutableCaching doesn't work with the IPU model" in log.text


def test_nothing_at_the_usual_level(linear, batch, capfd):
    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.trainingModel(linear, options)
    executor(*batch)
    executor.detachFromDevice()
    executor(*batch)
    executor.destroy()
    assert capfd.readouterr() == ("", "")
