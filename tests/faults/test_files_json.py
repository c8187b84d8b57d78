"""JSON settings set options and nothing else."""

from __future__ import annotations

import json

import pytest

import poptorch


@pytest.mark.parametrize(
    "path",
    [
        "loadFromFile", "from_json", "clone", "toDict", "update", "set", "createOrSet", "deleteIfExists", "exists",
        "checkIsFrozen", "_freeze", "_unfreeze", "_set_private", "_apply_environment", "_values.clear", "_values.pop",
        "Training.set", "Training._unfreeze", "Training.checkIsFrozen", "Training._values.clear", "_Popart._unfreeze",
        "_Popart.options.clear", "_Popart.options.pop", "_Popart.options.update", "_popart.set", "_training.set",
        "__class__", "__init__", "__reduce__", "Training.__init__", "deviceIterations.__call__", "randomSeed.__func__",
        "source_location_excludes.append", "execution_strategy.stage", "Distributed.processId", "", ".", "Training.",
        "Training.Training.gradientAccumulation", "TensorLocationSettings.useOnChipStorage", "Options.deviceIterations",
    ],
)  # fmt: skip
def test_json_settings_set_options_and_nothing_else(path, monkeypatch, tmp_path):
    (tmp_path / "code").write_text("deviceIterations(__import__('os').mkdir('trapped'))")
    options = poptorch.Options()
    before = repr(options)
    for argument in ([], "x", str(tmp_path / "code"), {}):
        with pytest.raises(AttributeError, match="Invalid attribute"):
            options.from_json(json.dumps({path: argument}))
    assert repr(options) == before
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", json.dumps({path: []}))
    with pytest.raises(AttributeError, match="Invalid attribute"):
        poptorch.Options()
