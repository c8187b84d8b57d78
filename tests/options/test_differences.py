"""What differs from the defaults: printed, as a dictionary, and as JSON that makes the same options again."""

from __future__ import annotations

import json

import pytest
import torch

import poptorch
from poptorch.options.table import OPTIONS

NOT_IN_JSON = {
    "setExecutionStrategy", "setAvailableMemoryProportion", "anchorTensor", "useOfflineIpuTarget", "autocastPolicy",
    "setPartialsType", "setActivationLocation", "setWeightLocation", "setOptimizerLocation", "setAccumulatorLocation",
}  # fmt: skip
"""Setters whose arguments are objects, or that fill a collection call by call."""

ROWS = [row for row in OPTIONS if row.group != "TensorLocationSettings" and row.replacement is None]


def options_with(row):
    options = poptorch.Options()
    owner = options if row.group == "Options" else getattr(options, row.group)
    eval(f"owner.{row.method}({row.example})", {"poptorch": poptorch, "torch": torch, "owner": owner})
    return options


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.qualified_name)
def test_json_makes_the_same_options_or_names_what_it_cannot_express(row):
    options = options_with(row)
    if row.method in NOT_IN_JSON:
        with pytest.raises(ValueError, match="cannot express") as refused:
            options.to_json()
        assert any(name in str(refused.value) for name in options.differences())
    else:
        assert repr(poptorch.Options().from_json(options.to_json())) == repr(options)


def test_several_settings_together():
    options = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode.All).randomSeed(3)
    options.Training.gradientAccumulation(2)
    options.Precision.enableStochasticRounding(True)
    assert json.loads(options.to_json()) == {
        "deviceIterations": 4,
        "outputMode": "OutputMode.All",
        "randomSeed": 3,
        "Training.gradientAccumulation": 2,
        "Precision.enableStochasticRounding": True,
    }
    assert repr(poptorch.Options().from_json(options.to_json())) == repr(options)


def test_defaults_have_no_differences():
    assert poptorch.Options().differences() == {}
    assert poptorch.Options().to_json() == "{}"
    assert str(poptorch.Options()) == "Options: all as by default"


def test_printing_shows_what_differs():
    options = poptorch.Options().replicationFactor(2)
    options.Jit.traceModel(False)
    assert str(options).splitlines() == [
        "Options that differ from the defaults:",
        "  replication_factor = 2",
        "  Jit.trace_model = False",
    ]
    assert repr(options).startswith("Options(device_iterations=1, replication_factor=2,")
