"""Setters that do more than store, and names of earlier releases."""

from __future__ import annotations

import io
import logging
import re

import pytest
import torch

import poptorch
from poptorch.options.progress import CompilationProgressBar, Progress

Mode = poptorch.OutputMode


@pytest.mark.parametrize(
    ("arguments", "stored"),
    [
        ((Mode.All,), (2, 1)),
        ((Mode.Final, None), (0, 1)),
        ((Mode.Sum, 0), (3, 1)),
        ((Mode.EveryN, 4), (1, 4)),
        ((Mode.All, 3), (2, 3)),
    ],
)
def test_output_mode(arguments, stored):
    opts = poptorch.Options().outputMode(*arguments)
    assert (opts.output_mode, opts.output_return_period) == stored
    assert type(opts.output_mode) is int
    assert not opts.defaultOutputMode()


def test_a_period_that_is_not_used_is_reported(caplog):
    with caplog.at_level(logging.INFO, logger="poptorch::python"):
        poptorch.Options().outputMode(Mode.EveryN, 3)
        assert not caplog.text
        poptorch.Options().outputMode(Mode.All, 3)
    assert "Anchor return period argument ignored" in caplog.text


@pytest.mark.parametrize("period", [None, 0, -1, "2"])
def test_every_n_needs_a_positive_period(period):
    with pytest.raises(AssertionError):
        poptorch.Options().outputMode(Mode.EveryN, period)


@pytest.mark.parametrize(
    ("arguments", "stored"),
    [
        ((), [True, Mode.Default, 1]),
        ((Mode.All, 3), [False, Mode.All, 1]),
        ((Mode.EveryN, 4), [False, Mode.EveryN, 4]),
        ((Mode.Final, 3), [False, Mode.Final, 1]),
        ((Mode.Sum,), [False, Mode.Sum, 1]),
    ],
)
def test_anchors(arguments, stored):
    opts = poptorch.Options()
    assert opts.anchorTensor("short", "old", Mode.Final) is None
    opts.anchorTensor("short", "long", *arguments)
    assert opts.anchored_tensors == {"short": ["long", *stored]}


def test_anchors_with_the_names_of_earlier_releases(caplog):
    opts = poptorch.Options()
    opts.anchorTensor("short", "long", anchor_mode=Mode.EveryN, anchor_return_period=5)
    assert opts.anchored_tensors == {"short": ["long", False, 1, 5]}
    assert "[Deprecated]" in caplog.text
    with pytest.raises(TypeError):
        opts.anchorTensor("short", "long", output_mode=Mode.All, anchor_mode=Mode.All)


class TestInputReplicaGrouping:
    def test_groups_are_stored(self):
        opts = poptorch.Options().replicationFactor(4)
        opts.inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
        assert (opts.input_group_size, opts.input_cgt) == (2, poptorch.CommGroupType.Orthogonal)
        opts.inputReplicaGrouping(3, poptorch.CommGroupType.NoGrouping)
        assert (opts.input_group_size, opts.input_cgt) == (1, poptorch.CommGroupType.Consecutive)

    @pytest.mark.parametrize(
        ("size", "phrase"),
        [
            (8, "input_group_size cannot be larger than"),
            (3, "input_group_size must be a factor of"),
            (0, "input_group_size must be a factor of"),
            (-2, "input_group_size must be a factor of"),
        ],
    )
    def test_wrong_sizes(self, size, phrase):
        opts = poptorch.Options().replicationFactor(4)
        with pytest.raises(ValueError, match=phrase):
            opts.inputReplicaGrouping(size, poptorch.CommGroupType.Consecutive)

    def test_the_factor_at_call_time_counts(self):
        with pytest.raises(ValueError, match="cannot be larger"):
            poptorch.Options().inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive).replicationFactor(4)

    def test_the_type_must_be_the_enum(self):
        with pytest.raises(AssertionError, match="Unexpected type <class 'int'> for option input_cgt"):
            poptorch.Options().inputReplicaGrouping(1, 0)


def test_strategies_may_be_subclasses_but_not_classes():
    class Mine(poptorch.PipelinedExecution):
        pass

    mine = Mine()
    assert poptorch.Options().setExecutionStrategy(mine).execution_strategy is mine
    assert isinstance(poptorch.Options().execution_strategy, poptorch.PipelinedExecution)
    for wrong in (Mine, None, 1):
        with pytest.raises(AssertionError):
            poptorch.Options().setExecutionStrategy(wrong)


def test_memory_shares_are_replaced_as_a_whole():
    opts = poptorch.Options().setAvailableMemoryProportion({"IPU0": 0.7, "IPU1": 0.2})
    opts.setAvailableMemoryProportion({"IPU3": 0.1})
    assert opts.available_memory_proportion == {3: 0.1}


def test_profiling_keeps_other_engine_options():
    opts = poptorch.Options()
    opts._Popart.setEngineOptions({"mine": "1", "autoReport.directory": "old"})
    opts.enableProfiling()
    assert opts._Popart.options["engineOptions"] == {
        "mine": "1",
        "debug.allowOutOfMemory": "true",
        "autoReport.directory": ".",
        "autoReport.all": "true",
    }


def test_the_cache_takes_a_path_object(tmp_path):
    opts = poptorch.Options().enableExecutableCaching(tmp_path)
    assert opts._Popart.options["cachePath"] == str(tmp_path)


@pytest.mark.parametrize(("given", "stored"), [(True, 2), (1, 2), (False, 0), (None, 0)])
def test_synthetic_data(given, stored):
    assert poptorch.Options().enableSyntheticData(given)._Popart.options["syntheticDataMode"] == stored


def test_the_seed_reaches_torch_at_once():
    poptorch.Options().randomSeed(7)
    first = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(first, torch.rand(3))


def test_the_offline_target_also_sets_the_connection():
    opts = poptorch.Options().useOfflineIpuTarget(21)
    assert (opts.ipu_version, opts.connection_type) == (21, poptorch.ConnectionType.Never)


@pytest.mark.parametrize("tiles", [32, 100, 192])
def test_valid_numbers_of_io_tiles(tiles):
    assert poptorch.Options().TensorLocations.numIOTiles(tiles).toDict() == {"numIOTiles": tiles}


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.float, "float"), (torch.float32, "float"), (torch.half, "half"), (torch.float16, "half")],
)
def test_partials(dtype, name):
    opts = poptorch.Options()
    opts.Precision.setPartialsType(dtype)
    assert opts._Popart.options["partialsTypeMatMuls"] == name
    assert opts._Popart.options["convolutionOptions"] == {"partialsType": name}


def test_tracing_can_be_chosen_either_way():
    jit = poptorch.Options().Jit
    assert jit.traceModel(False).trace_model is False
    assert jit.traceModel(True).trace_model is True
    assert jit.tracing_requested
    assert not poptorch.Options().Jit.tracing_requested


def test_a_policy_is_kept_with_its_names():
    policy = poptorch.autocasting.Policy(fp16=[torch.matmul], demote=[torch.nn.Linear])
    precision = poptorch.Options().Precision.autocastPolicy(policy)
    assert precision.autocast_policy is policy
    assert precision.autocast_policy_dict == {
        "fp16": ["matmul"],
        "fp32": [],
        "promote": [],
        "demote": ["Linear"],
    }


def test_the_default_policy():
    default = poptorch.autocasting.default
    assert torch.nn.Conv2d in default.fp16
    assert len(default.fp16) == 19
    assert len(default.promote) == 11
    assert default.fp32 == default.demote == []


# --- names of earlier releases ------------------------------------------------------------------------------


def test_old_spellings_of_the_backend_settings(caplog):
    opts = poptorch.Options()
    assert opts.Popart is opts._Popart is opts._popart
    assert caplog.text.count("[Deprecated]") == 1
    assert opts.Popart.set("a", 1).setEngineOptions({}) is opts._Popart


def test_anchor_mode(caplog):
    opts = poptorch.Options()
    assert opts.defaultAnchorMode()
    assert opts.anchorMode(poptorch.AnchorMode.EveryN, anchor_return_period=3) is opts
    assert (opts.output_mode, opts.output_return_period) == (1, 3)
    assert not opts.defaultAnchorMode()
    assert caplog.text.count("[Deprecated]") == 4


# --- the progress bar ---------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_progress_bar_shows_label_count_and_times_but_no_rate(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    bar = CompilationProgressBar()
    assert screen.getvalue() == ""
    for done in (0, 50, 100):
        bar(done, 100)
    shown = screen.getvalue().split("\r")[-1]
    assert "Graph compilation: 100%" in shown
    assert "100/100 [00:" in shown
    assert "it/s" not in shown


def test_the_progress_bar_names_the_stage(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with Progress(poptorch.Options().outputMode(Mode.All), 2) as progress:
        progress.begin("capture")
        progress.extend(2)
        progress.begin("native 1/2")
        progress.note("C++ 3/4")
        progress.begin("loading")
    shown = re.findall(r"(\d+/\d+) \[[^,\]]*(?:, ([^\]]*))?\]", screen.getvalue())
    stages = [("0/2", "capture"), ("1/4", "native 1/2"), ("1/4", "C++ 3/4"), ("2/4", "loading"), ("4/4", "")]
    assert list(dict.fromkeys(shown)) == [("0/2", ""), *stages]


def test_there_is_no_progress_bar_in_a_log_file(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    CompilationProgressBar()(100, 100)
    assert log.getvalue() == ""
