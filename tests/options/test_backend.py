"""What happens to options when they reach the backend."""

from __future__ import annotations

import logging

import pytest
import torch

import poptorch
from poptorch import _logging
from poptorch.options import backend
from poptorch.options.backend_keys import KNOWN_KEYS, OPTIONS_KEYS, PASSTHROUGH_KEYS
from poptorch.options.table import OPTIONS
from poptorch.poptorch_core import _validateOptions


@pytest.fixture
def lines():
    """The backend's log lines of the test, from DEBUG up."""
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())

    handler, level = Keep(), _logging.backend.level
    _logging.backend.addHandler(handler)
    _logging.backend.setLevel(logging.DEBUG)
    yield seen
    _logging.backend.removeHandler(handler)
    _logging.backend.setLevel(level)


def ready():
    return poptorch.Options().outputMode(poptorch.OutputMode.All)


def test_a_chain_of_setters_passes(tmp_path):
    opts = poptorch.Options()
    opts.deviceIterations(1).setExecutionStrategy(poptorch.PipelinedExecution()).replicationFactor(1).logDir(
        str(tmp_path)
    ).enableSyntheticData(True).maxRepeatLogs(None)
    with pytest.raises(AssertionError, match="An output mode must be picked before serialisation"):
        opts.toDict()
    _validateOptions(opts.outputMode(poptorch.OutputMode.Final).toDict())


ROWS = [row for row in OPTIONS if row.group != "TensorLocationSettings"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.qualified_name)
def test_whatever_the_setters_store_is_known_to_the_backend(row, monkeypatch):
    opts = ready()
    owner = "opts" if row.group == "Options" else f"opts.{row.group}"
    eval(f"{owner}.{row.method}({row.example})", {"poptorch": poptorch, "torch": torch, "opts": opts})
    _validateOptions(opts.toDict())


def test_the_content_of_the_dictionary():
    opts = ready().useIpuId(3)
    opts.Training.gradientAccumulation(2)
    opts.TensorLocations.numIOTiles(32)
    opts._Popart.set("autoRecomputation", 1)
    content = opts.toDict()
    assert callable(content.pop("compilation_progress_bar_fn"))
    assert content["execution_mode"] == 0
    assert content["gradient_accumulation"] == 2
    assert content["num_distributed_processes"] == 1
    assert content["numIOTiles"] == 32
    assert content["autoRecomputation"] == 1
    assert content["ipu_id"] == 3
    assert not {"trace_model", "autocast_enabled", "half_float_casting", "strict_compatibility"} & content.keys()
    assert "compilation_progress_bar_fn" not in opts.showCompilationProgressBar(False).toDict()


@pytest.mark.parametrize(
    ("strategy", "entries"),
    [
        (poptorch.PipelinedExecution(), {"execution_mode": 0}),
        (poptorch.ShardedExecution(), {"execution_mode": 1}),
        (
            poptorch.SerialPhasedExecution(poptorch.Phase("a")),
            {
                "execution_mode": 2,
                "separate_backward_phase": False,
                "tensors_liveness": 0,
                "serial_phases_execution": True,
            },
        ),
        (
            poptorch.ParallelPhasedExecution(poptorch.Phase("a")),
            {
                "execution_mode": 2,
                "separate_backward_phase": False,
                "tensors_liveness": 0,
                "serial_phases_execution": False,
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_strategies_describe_themselves(strategy, entries):
    content = ready().setExecutionStrategy(strategy).toDict()
    assert {key: content[key] for key in entries} == entries
    _validateOptions(content)


def test_a_key_in_two_places_is_refused():
    opts = ready()
    opts._Popart.set("meanAccumulationAndReplicationReductionStrategy", 1)
    with pytest.raises(AssertionError, match="they have some keys in common"):
        opts.toDict()


@pytest.mark.parametrize(
    ("key", "value", "phrase"),
    [
        ("newOption", True, "Unknown bool option newOption"),
        ("numIOTiles", True, "Unknown bool option numIOTiles"),
        ("newOption", 1, "Unknown uint64 option newOption"),
        ("outlineThreshold", 1, "Unknown uint64 option outlineThreshold"),
        ("newOption", 1.0, "Unknown floating point option newOption"),
        ("newOption", "text", "Unknown string option newOption"),
        ("newOption", ["a"], "Unknown set / vector option newOption"),
        ("newOption", {"a": "b"}, "Unknown map option newOption"),
        ("enableStabelNorm", True, "Did you mean 'enableStableNorm'"),
        ("autoRecomputation", torch.zeros(2), "Unknown value type .*Tensor.* for option autoRecomputation"),
        ("newOption", torch.zeros(2), "Unknown .* option "),
        ("autoRecomputation", None, "Unknown value type .*NoneType.* for option autoRecomputation"),
        ("autoRecomputation", 5, "Value for RecomputationType out of range"),
        ("syntheticDataMode", 4, "Value for SyntheticDataMode out of range"),
        ("hardwareInstrumentations", {2}, "Value for Instrumentation out of range"),
        ("hardwareInstrumentations", {"outer"}, "Unknown value type .* for option hardwareInstrumentations"),
        ("customCodelets", [1.5], "Unknown value type .* for option customCodelets"),
        ("engineOptions", {"a": [1]}, "Unknown value type .* for option engineOptions"),
        ("patterns", {"PadSum": True}, "'patterns' should not be set"),
    ],
)
def test_wrong_backend_settings(key, value, phrase):
    opts = ready()
    opts._Popart.set(key, value)
    with pytest.raises(poptorch.Error, match=phrase):
        _validateOptions(opts.toDict())


def test_negative_numbers_are_refused_with_the_origin_of_the_original():
    opts = ready()
    opts._Popart.set("finalDotOp", -1)
    with pytest.raises(poptorch.Error, match="finalDotOp") as caught:
        _validateOptions(opts.toDict())
    assert caught.value.type == "std::exception"
    opts._Popart.set("finalDotOp", 2**64)
    with pytest.raises(poptorch.Error, match="64 bits"):
        _validateOptions(opts.toDict())


@pytest.mark.parametrize(
    ("configure", "phrase"),
    [
        (lambda o: o.deviceIterations(0), "device_iterations is 0"),
        (lambda o: o.deviceIterations(-2), "device_iterations"),
        (lambda o: o.replicationFactor(0), "replication_factor is 0"),
        (lambda o: o.Training.gradientAccumulation(0), "gradient_accumulation is 0"),
        (lambda o: o.Distributed.configureProcessId(2, 2), "process 2 of 2"),
        (lambda o: o.useOfflineIpuTarget(3), "no IPU version 3"),
        (lambda o: o.setAvailableMemoryProportion({"IPU0": 1.5}), "between 0 and 1"),
        (lambda o: o.setAvailableMemoryProportion({"IPU0": float("nan")}), "between 0 and 1"),
        (lambda o: o.setAvailableMemoryProportion({"IPU-1": 0.5}), "numbered from 0"),
        (
            lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy(
                poptorch.MeanReductionStrategy.PostAndLoss
            ),
            "Value for MeanReductionStrategy out of range",
        ),
        (lambda o: o._Popart.setPatterns({}, 4), "PatternsLevel out of range"),
    ],
)
def test_values_that_the_setters_let_through_and_no_program_can_use(configure, phrase):
    opts = ready()
    configure(opts)
    with pytest.raises(poptorch.Error, match=phrase):
        _validateOptions(opts.toDict())


def test_each_accepted_value_is_logged(lines):
    opts = ready().deviceIterations(3).replicationFactor(2)
    opts.enableSyntheticData(True).enableExecutableCaching("/tmp/cache")
    opts.updatableNamedBuffers(["scale"])
    opts.Precision.setPartialsType(torch.half)
    opts.Training.setAutomaticLossScaling(True)
    popart = opts._Popart
    popart.set("hardwareInstrumentations", {0, 1})
    popart.set("dotChecks", ["FINAL", "ALL"])
    popart.set("enableExplicitIR", True)
    popart.set("accumulateOuterFragmentSettings.schedule", 1)
    popart.set("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"])
    popart.set("automaticLossScalingSettings.gradientTensorTrackingMethod", 1)
    popart.setPatterns({"PadSum": True}, 0)
    for key in ("engineOptions", "gclOptions", "lstmOptions", "matmulOptions", "reportOptions"):
        popart.set(key, {"a": "b", "flag": True, "count": 3})
    _validateOptions(opts.toDict())
    prefix = "poptorch.Options "
    for line in (
        "set device_iterations to value 3",
        "set replication_factor to value 2",
        "set execution_mode to value 0",
        "set syntheticDataMode to value 2",
        "set enableEngineCaching to value true",
        "set partialsTypeMatMuls to value half",
        "set convolutionOptions[partialsType] to half",
        "set automaticLossScalingSettings.enabled to value true",
        "added 0 to hardwareInstrumentations",
        "added 1 to hardwareInstrumentations",
        "added FINAL to dotChecks",
        "added scale to updatableNamedBuffers",
        "set enableExplicitIR to value true",
        "set accumulateOuterFragmentSettings.schedule to value 1",
        "added 0 to accumulateOuterFragmentSettings.excludedVirtualGraphs",
        "set automaticLossScalingSettings.gradientTensorTrackingMethod to value 1",
        "set lstmOptions[a] to b",
        "set lstmOptions[flag] to 1",
        "set gclOptions[count] to 3",
    ):
        assert prefix + line in lines


@pytest.mark.parametrize(("use", "word"), [(True, "Enabled"), (False, "Disabled")])
def test_the_choice_of_the_model_is_reported(lines, use, word):
    _validateOptions(ready().toDict())
    assert not any("From the user configuration" in line for line in lines)
    _validateOptions(ready().useIpuModel(use).toDict())
    assert f"From the user configuration: Ipu model: {word}" in lines


@pytest.mark.parametrize(("value", "word"), [(None, "true"), (True, "true"), (False, "false")])
def test_the_type_of_running_statistics_is_reported(lines, value, word):
    opts = ready()
    if value is not None:
        opts.Precision.runningStatisticsAlwaysFloat(value)
    backend.announce_precision(opts.Precision)
    assert lines == [f"poptorch.Options set runningStatisticsAlwaysFloat to {word}"]


def test_the_user_wins_over_derived_settings(lines):
    assert backend.resolve_derived({"enablePipelining": False}, "enablePipelining", True) is False
    assert lines == ["enablePipelining forced by the user from default to false"]
    lines.clear()
    assert backend.resolve_derived({}, "enablePipelining", True) is True
    assert backend.resolve_derived({"enablePipelining": True}, "enablePipelining", True) is True
    assert lines == []


def test_partials_and_dithering_are_kept_together():
    opts = ready()
    opts.Precision.setPartialsType(torch.half)
    opts.Training.setConvolutionDithering(True)
    assert opts._Popart.options["convolutionOptions"] == {"partialsType": "half", "enableConvDithering": True}


def test_the_known_keys_are_listed_once_and_explained():
    assert len(KNOWN_KEYS) == len(PASSTHROUGH_KEYS) + len(OPTIONS_KEYS)
    assert all(key.effect_note for key in PASSTHROUGH_KEYS)
