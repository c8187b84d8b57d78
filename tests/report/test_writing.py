"""Which files are written, when, and what they say."""

from __future__ import annotations

import json
import logging
import zipfile

import numpy as np
import pytest
import torch

import poptorch
import preloaded
from poptorch import _logging
from poptorch.options.engine import engine_options, is_true, wants_report
from poptorch.report import files


def infer(options: poptorch.Options | None = None, calls: int = 1) -> poptorch.PoplarExecutor:
    executor = poptorch.inferenceModel(torch.nn.Linear(4, 4), options)
    for _ in range(calls):
        executor(torch.ones(2, 4))
    return executor


def document(folder) -> dict:
    return json.loads((folder / "profile.json").read_text())


class TestWhere:
    def test_nothing_happens_without_a_request(self, tmp_path):
        script = (
            "import sys, torch, poptorch\n"
            "poptorch.inferenceModel(torch.nn.ReLU())(torch.ones(2))\n"
            "assert not [name for name in sys.modules if name.startswith('poptorch.report')]\n"
        )
        preloaded.run(["-c", script], cwd=tmp_path, check=True)
        assert not list(tmp_path.iterdir())

    def test_the_folder_has_the_name_of_the_model(self, tmp_path):
        infer(poptorch.Options().enableProfiling(str(tmp_path)))
        infer(poptorch.Options().enableProfiling(str(tmp_path)).modelName("mine"))
        assert sorted(path.parent.name for path in tmp_path.glob("*/profile.pop")) == ["inference", "mine"]
        assert document(tmp_path / "mine")["model"] == "mine"

    def test_the_environment_asks_for_a_report(self, tmp_path, monkeypatch):
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all":"true"}')
        monkeypatch.chdir(tmp_path)
        infer()
        assert (tmp_path / "inference" / "profile.pop").is_file()

    def test_the_environment_wins(self, tmp_path, monkeypatch):
        there = tmp_path / "there"
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps({"autoReport.directory": str(there)}))
        infer(poptorch.Options().enableProfiling(str(tmp_path / "here")))
        assert [path.name for path in tmp_path.iterdir()] == ["there"]

    def test_the_second_model_of_a_name_takes_the_folder(self, tmp_path, caplog):
        _logging.forget_said()
        options = poptorch.Options().enableProfiling(str(tmp_path))
        first = infer(options)
        with caplog.at_level(logging.WARNING):
            second = poptorch.inferenceModel(torch.nn.ReLU(), options)
            second(torch.ones(3))
            first(torch.ones(2, 4))
        assert "modelName" in caplog.text
        second.destroy()
        first.destroy()
        profile = files.load(tmp_path / "inference")
        assert list(profile.tables["operations"]["operator"]) == ["aten.relu.default"]

    def test_a_folder_that_cannot_be_written_is_a_warning(self, tmp_path, caplog):
        (tmp_path / "file").write_text("")
        with caplog.at_level(logging.WARNING):
            infer(poptorch.Options().enableProfiling(str(tmp_path / "file")))
        assert "cannot be written" in caplog.text

    def test_other_processes_of_a_job_write_nothing(self, tmp_path):
        options = poptorch.Options().enableProfiling(str(tmp_path))
        options.Distributed.configureProcessId(1, 2)
        infer(options)
        assert not list(tmp_path.iterdir())


class TestEngineOptions:
    @pytest.fixture(autouse=True)
    def fresh(self):
        _logging.forget_said()

    @pytest.mark.parametrize("text", ["{", "[1]", '"true"'])
    def test_what_is_no_json_object_is_a_warning(self, text, monkeypatch, caplog):
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", text)
        with caplog.at_level(logging.WARNING):
            infer()
        assert "POPLAR_ENGINE_OPTIONS must be a JSON object" in caplog.text

    def test_an_unknown_name_is_a_warning_with_a_hint(self, monkeypatch, caplog):
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.al":"true"}')
        with caplog.at_level(logging.WARNING):
            infer()
        assert "'autoReport.al' is unknown" in caplog.text
        assert "Did you mean 'autoReport.all'" in caplog.text

    def test_files_that_cannot_exist_are_a_warning(self, caplog):
        options = poptorch.Options()
        options._Popart.setEngineOptions({"autoReport.outputArchive": "true"})
        with caplog.at_level(logging.WARNING):
            engine_options(options)
        assert "'autoReport.outputArchive' has no effect" in caplog.text

    def test_names_about_real_hardware_are_mentioned_once(self, monkeypatch, caplog):
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"debug.instrument":"true", "opt.useAutoloader":"true"}')
        with caplog.at_level(logging.INFO, logger="poptorch::python"):
            for _ in range(2):
                assert not wants_report(engine_options(poptorch.Options()))
        assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
        assert all("has no effect on virtual ones" in record.message for record in caplog.records)

    def test_names_that_have_an_option_of_their_own_are_a_warning(self, monkeypatch, caplog):
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"prng.seed":"3"}')
        with caplog.at_level(logging.WARNING):
            engine_options(poptorch.Options())
        assert "'prng.seed' has no effect: use Options.randomSeed()" in caplog.text

    def test_json_booleans_are_taken(self, monkeypatch):
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all": true}')
        assert wants_report(engine_options(poptorch.Options()))

    def test_another_value_than_true_or_false_is_a_warning(self, caplog):
        with caplog.at_level(logging.WARNING):
            assert not is_true({"autoReport.all": "maybe"}, "autoReport.all")
        assert "'autoReport.all' is 'maybe'" in caplog.text

    def test_parts_can_be_left_out(self, tmp_path, monkeypatch):
        asked = {
            "autoReport.outputGraphProfile": "true",
            "autoReport.directory": str(tmp_path),
            "autoReport.outputLoweredVars": "false",
            "autoReport.outputDebugInfo": "false",
            "profiler.includeFlopEstimates": "false",
            "profiler.includeCycleEstimates": "false",
        }
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(asked))
        infer(calls=2).destroy()
        profile = files.load(tmp_path / "inference")
        assert "variables" not in profile.tables
        assert not {"flops", "cycles", "source"} & profile.tables["operations"].keys()
        assert not profile.tables["programs"]["cycles"].any()
        assert profile.document["execution"]["runs"] == []


class TestRuns:
    def test_the_report_is_there_before_the_first_run(self, tmp_path):
        executor = poptorch.inferenceModel(torch.nn.ReLU(), poptorch.Options().enableProfiling(str(tmp_path)))
        executor.compile(torch.ones(2))
        assert document(tmp_path / "inference")["execution"]["runs"] == []
        executor(torch.ones(2))
        assert len(document(tmp_path / "inference")["execution"]["runs"]) == 1

    def test_the_latest_runs_are_kept(self, folder):
        execution = document(folder)["execution"]
        assert [run["number"] for run in execution["runs"]] == [1, 2]
        assert execution["calls"] == 3

    def test_spans_of_stages_are_measured(self, folder):
        spans = files.load(folder).tables["spans"]
        for kind in ("forward", "backward"):
            those = spans["kind"] == kind
            measured = set(zip(spans["run"][those].tolist(), spans["part"][those].tolist(), strict=True))
            assert measured == {(0, 0), (0, 1), (1, 0), (1, 1)}
        assert (spans["end"] >= spans["start"]).all()

    def test_the_number_of_runs_is_an_option(self, tmp_path, monkeypatch):
        asked = {"autoReport.executionProfileProgramRunCount": "3", "autoReport.streamAtEachRun": "false"}
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(asked))
        executor = infer(poptorch.Options().enableProfiling(str(tmp_path)), calls=5)
        assert document(tmp_path / "inference")["execution"]["runs"] == []
        executor.destroy()
        assert [run["number"] for run in document(tmp_path / "inference")["execution"]["runs"]] == [2, 3, 4]

    def test_the_end_of_the_program_completes_the_report(self, tmp_path):
        script = (
            "import torch, poptorch\n"
            "options = poptorch.Options().enableProfiling('out')\n"
            "options._Popart.options['engineOptions']['autoReport.streamAtEachRun'] = 'false'\n"
            "executor = poptorch.inferenceModel(torch.nn.ReLU(), options)\n"
            "executor(torch.ones(2))\n"
        )
        preloaded.run(["-c", script], cwd=tmp_path, check=True)
        assert len(document(tmp_path / "out" / "inference")["execution"]["runs"]) == 1

    def test_a_call_that_fails_is_not_kept(self, tmp_path):
        executor = poptorch.inferenceModel(torch.nn.Embedding(3, 2), poptorch.Options().enableProfiling(str(tmp_path)))
        executor(torch.tensor([0]))
        with pytest.raises(IndexError):
            executor(torch.tensor([7]))
        executor.destroy()
        assert document(tmp_path / "inference")["execution"]["calls"] == 1

    def test_a_trace_of_the_user_still_gets_all_spans(self, tmp_path):
        from poptorch.profiling.trace import Recorder

        executor = poptorch.inferenceModel(
            torch.nn.ReLU(), poptorch.Options().enableProfiling(str(tmp_path)).deviceIterations(2)
        )
        executor.trace = trace = Recorder()
        executor(torch.ones(2))
        assert "output" in {span.kind.value for span in trace.spans}
        assert executor.trace is trace


class TestFiles:
    def test_the_figures_are_those_of_the_estimate(self, folder, estimate):
        found = document(folder)
        assert found["estimate"]["cycles"] == estimate.cycles
        assert found["target"]["numTiles"] == 2 * 1472
        for ipu, written in zip(estimate.ipus, found["memory"]["ipus"], strict=True):
            assert written["includingGaps"] == ipu.total
            assert written["byCategory"] == ipu.memory

    def test_the_tables_agree_with_the_figures(self, folder, estimate):
        tables = files.load(folder).tables
        records = [r for stage in estimate.stages for r in stage.operations]
        records += [r for ipu in estimate.ipus for r in estimate.update.on(ipu.ipu)]
        assert list(tables["operations"]["cycles"]) == [r.cycles.total for r in records]
        for place, ipu in enumerate(estimate.ipus):
            rows = slice(place * 1472, (place + 1) * 1472)
            np.testing.assert_array_equal(tables["tiles"]["weights"][rows], ipu.by_category["weights"])

    def test_the_schema_describes_every_column(self, folder):
        schema, tables = document(folder)["tables"], files.load(folder).tables
        assert {name: set(it["columns"]) for name, it in schema.items()} == {n: set(t) for n, t in tables.items()}
        assert all(schema[name]["rows"] == len(column) for name, table in tables.items() for column in table.values())

    def test_the_archive_says_what_it_is(self, folder):
        with zipfile.ZipFile(folder / "profile.pop") as archive:
            assert "not its format" in archive.read("README.txt").decode()
        assert np.load(folder / "profile.pop")["tables/operations/cycles"].sum() > 0

    def test_another_file_is_refused(self, tmp_path):
        (tmp_path / "profile.pop").write_bytes(b"capnp")
        with pytest.raises(poptorch.Error, match="no profile of poptorch"):
            files.load(tmp_path)

    def test_a_missing_file_names_those_that_exist(self, folder):
        with pytest.raises(poptorch.Error, match="folders training"):
            files.load(folder.parent)
