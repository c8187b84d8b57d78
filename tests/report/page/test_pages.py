"""When pages are written, by whom, and that they hold nothing that could run or be fetched."""

from __future__ import annotations

import itertools
import json
import logging
import re
import sys

import numpy as np
import pytest
import torch
from synthetic_profiles import synthetic_profile

import poptorch
from poptorch.cli import main
from poptorch.report import files, page
from poptorch.report.files import Profile
from poptorch.report.page import rendering

EVIL = "</script><script>window.evil=1</script><img src=x onerror='window.evil=1'>"


def infer(options: poptorch.Options | None = None) -> None:
    executor = poptorch.inferenceModel(torch.nn.Linear(4, 4), options)
    executor(torch.ones(2, 4))
    executor.destroy()


class TestRoutes:
    def test_profiling_writes_the_page(self, tmp_path):
        infer(poptorch.Options().enableProfiling(str(tmp_path)))
        assert sorted(it.name for it in (tmp_path / "inference").iterdir()) == [
            "profile.json",
            "profile.pop",
            "report.html",
        ]

    def test_the_environment_does_too(self, tmp_path, monkeypatch):
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all":"true"}')
        monkeypatch.chdir(tmp_path)
        infer()
        assert (tmp_path / "inference" / "report.html").stat().st_size > 1e6

    def test_the_command_writes_the_page_again(self, tmp_path, capsys):
        files.save(tmp_path, synthetic_profile(2, 8, 24, 10))
        assert main(["report", str(tmp_path), "--text"]) == 0
        assert f"Page for browsers: {tmp_path / 'report.html'}" in capsys.readouterr().out
        assert (tmp_path / "report.html").is_file()

    def test_what_calls_do_not_change_is_packed_once(self, tmp_path, monkeypatch):
        packed = []
        original = page.model_of
        monkeypatch.setattr(page, "model_of", lambda *args: packed.append(args) or original(*args))
        writer, profile = page.ReportWriter(), synthetic_profile(2, 8, 24, 10)
        writer(tmp_path, profile)
        first = (tmp_path / "report.html").read_text()
        later = Profile({**profile.document, "execution": {"programRunCount": 1, "runs": []}}, {**profile.tables})
        writer(tmp_path, later)
        assert len(packed) == 1
        second = (tmp_path / "report.html").read_text()
        blocks = [re.findall(r'class="packed-(\w+)">([^<]+)<', text) for text in (first, second)]
        assert blocks[0][0] == blocks[1][0]
        assert blocks[0][1] != blocks[1][1]

    @pytest.mark.parametrize("module", ["plotly", "jinja2"])
    def test_without_its_packages_a_warning_says_how_to_get_the_page(self, tmp_path, monkeypatch, caplog, module):
        rendering.plotly_script.cache_clear()
        monkeypatch.setitem(sys.modules, module, None)
        with caplog.at_level(logging.WARNING):
            infer(poptorch.Options().enableProfiling(str(tmp_path)))
        assert sorted(it.name for it in (tmp_path / "inference").iterdir()) == ["profile.json", "profile.pop"]
        assert caplog.text.count(f"{module} is not installed: pip install 'poptorch[report]'") == 1


class TestComparison:
    def test_two_reports_make_one_page(self, tmp_path, capsys):
        for name in ("before", "after"):
            files.save(tmp_path / name / "training", synthetic_profile(2, 8, 24, 10))
        assert main(["report", str(tmp_path / "before"), "--compare", str(tmp_path / "after")]) == 0
        file = tmp_path / "before" / "training" / "comparison.html"
        assert str(file) in capsys.readouterr().out
        text = file.read_text()
        assert text.count('packed-model">') == 2
        assert "before/training and after/training" in text

    def test_reports_of_several_models_are_compared_by_name(self, tmp_path):
        for name in ("a/training", "a/inference", "b/training"):
            files.save(tmp_path / name, synthetic_profile(2, 8, 24, 10))
        assert main(["report", str(tmp_path / "a"), "--compare", str(tmp_path / "b")]) == 0
        assert [it.parent.name for it in tmp_path.glob("*/*/comparison.html")] == ["training"]

    def test_differences_are_printed_and_the_status_says_what_is_worse(self, tmp_path, capsys):
        before, after = synthetic_profile(2, 8, 24, 10), synthetic_profile(2, 8, 24, 10)
        after.document["estimate"]["throughput"] *= 0.9
        for name, profile in (("before", before), ("after", after)):
            files.save(tmp_path / name, profile)
        there, back = ["report", str(tmp_path / "before")], ["report", str(tmp_path / "after")]
        assert main([*there, "--compare", str(tmp_path / "after")]) == 3
        text = capsys.readouterr().out
        assert "Samples per second" in text
        assert "-10.0%" in text
        assert main([*there, "--compare", str(tmp_path / "after"), "--json"]) == 3
        (worse,) = json.loads(capsys.readouterr().out)["worse"]
        assert worse.startswith("Samples per second")
        assert main([*there, "--compare", str(tmp_path / "after"), "--tolerance", "20"]) == 0
        assert main([*back, "--compare", str(tmp_path / "before")]) == 0

    def test_nothing_in_common_is_an_error(self, tmp_path, capsys):
        for name in ("a/x", "a/y", "b/z"):
            files.save(tmp_path / name, synthetic_profile(2, 8, 24, 10))
        assert main(["report", str(tmp_path / "a"), "--compare", str(tmp_path / "b")]) == 1
        assert "nothing to compare" in capsys.readouterr().err


class TestTrace:
    def test_host_and_ipus_are_on_one_axis(self, written, tmp_path):
        file = tmp_path / "trace.json"
        assert main(["report", str(written[0]), "--text", "--trace", str(file)]) == 0
        events = json.loads(file.read_text())["traceEvents"]
        names = {it["args"]["name"] for it in events if it["name"] == "process_name"}
        assert names == {"this host (measured)", "IPU 0 (mk2, modelled)", "IPU 1 (mk2, modelled)"}
        spans = [it for it in events if it["ph"] == "X"]
        assert all(it["ts"] >= 0 and it["dur"] >= 0 for it in spans)
        assert {it["pid"] for it in spans} == {1, 100, 101}
        lines = [it["args"]["line"] for it in spans if it["cat"] == "compute" and "line" in it["args"]]
        assert any("conftest.py:" in line for line in lines)
        clock = written[1].chip.clock
        update = max(it["dur"] for it in spans if it["name"] == "weight update")
        assert update == pytest.approx(1e6 * written[1].timeline.update / clock, rel=1e-3)
        for ipu in (100, 101):  # phases of one IPU never overlap
            phases = sorted((it["ts"], it["dur"]) for it in spans if it["pid"] == ipu and it["tid"] > 0)
            assert all(a + d <= b + 1e-3 for (a, d), (b, _) in itertools.pairwise(phases))

    def test_several_reports_are_refused(self, tmp_path, capsys):
        for name in ("a", "b"):
            files.save(tmp_path / name, synthetic_profile(2, 8, 24, 10))
        assert main(["report", str(tmp_path), "--trace", str(tmp_path / "x.json")]) == 1
        assert "takes one report" in capsys.readouterr().err


class TestContent:
    def test_names_of_the_user_are_never_markup(self, tmp_path):
        profile = synthetic_profile(2, 8, 24, 10)
        profile.document["model"] = EVIL
        profile.tables["operations"]["name"] = np.array([EVIL] * 24)
        text = page.write_page(tmp_path, profile).read_text()
        assert "<img" not in text
        assert "window.evil" not in text.replace("window.evil=1&lt;", "").replace("window.evil=1&#39;", "")

    def test_nothing_comes_from_elsewhere(self, tmp_path):
        text = page.write_page(tmp_path, synthetic_profile(2, 8, 24, 10)).read_text()
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?!data:,)", text)
        assert not re.findall(r"https?://", text)
        assert "default-src 'none'" in text

    def test_the_largest_page_is_small_enough(self, tmp_path):
        file = page.write_page(tmp_path, synthetic_profile(ipus=16, tiles=1472, operations=5000))
        assert file.stat().st_size < 30e6

    def test_all_scripts_are_there_and_short(self):
        folder = rendering.resources.files("poptorch.report.page") / "assets" / "js"
        found = {it.name.removesuffix(".js"): it.read_text("utf-8").count("\n") for it in folder.iterdir()}
        assert set(found) == set(rendering.SCRIPTS)
        assert max(found.values()) < 500
