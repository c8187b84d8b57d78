"""Settings whose part of the package is still to come."""

from __future__ import annotations

import logging

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
