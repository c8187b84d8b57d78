"""Settings whose part of the package is still to come."""

from __future__ import annotations

import logging

import pytest
import torch

import poptorch
from poptorch import _logging
from poptorch.options.unfinished import mention_unfinished


def test_a_setting_without_effect_is_mentioned_once(caplog):
    _logging.forget_said()
    options = poptorch.Options().logDir("logs")
    with caplog.at_level(logging.WARNING):
        poptorch.inferenceModel(torch.nn.ReLU(), options)(torch.ones(2))
        poptorch.inferenceModel(torch.nn.ReLU(), options)(torch.ones(2))
    assert caplog.text.count("logDir has no effect yet") == 1


def test_defaults_are_not_mentioned():
    assert mention_unfinished(poptorch.Options()) == []
    assert mention_unfinished(poptorch.Options().enableExecutableCaching(None)) == []


def test_training_over_several_processes_is_refused():
    options = poptorch.Options()
    options.Distributed.configureProcessId(0, 2)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return poptorch.identity_loss((x * self.weight).sum(), reduction="none")

    model = Model()
    with pytest.raises(poptorch.Error, match="Training over 2 processes"):
        poptorch.trainingModel(model, options)(torch.ones(1))
