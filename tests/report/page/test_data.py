"""What the page shows, without a browser: packing, content, trace, insights, differences."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from synthetic_profiles import synthetic_profile

from poptorch.report import files
from poptorch.report.building import build_profile
from poptorch.report.checking import check_document
from poptorch.report.files import Profile
from poptorch.report.findings import findings_in
from poptorch.report.objects import Compilation
from poptorch.report.page.comparing import compare
from poptorch.report.page.content import calls_of, model_of
from poptorch.report.page.packing import pack, unpack
from poptorch.report.page.trace import inner_repeats
from poptorch.report.summary import as_text, summary


@pytest.fixture(scope="module")
def profile(written) -> Profile:
    return files.load(written[0])


@pytest.fixture
def small() -> Profile:
    """A made-up profile that a test may change."""
    return synthetic_profile(ipus=2, tiles=8, operations=24, variables=10)


class TestPacking:
    @pytest.mark.parametrize(
        ("values", "stored"),
        [
            ([0, 255], "uint8"),
            ([-1, 3], "int16"),
            ([0, 65535], "uint16"),
            ([-1, 70000], "int32"),
            ([0, 4e9], "uint32"),
            ([0.5, 1e12], "float64"),
            ([-1, 1e15], "float64"),
            ([True, False], "uint8"),
            ([], "uint8"),
        ],
    )
    def test_numbers_take_the_smallest_type_that_keeps_them(self, values, stored):
        _, tables = unpack(pack({}, {"t": {"x": np.array(values, dtype=None if values else np.int64)}}))
        assert tables["t"]["x"].dtype == stored
        assert tables["t"]["x"].tolist() == values

    def test_texts_come_back(self):
        names = np.array(["b", "ä</script>", "", "b"])
        _, tables = unpack(pack({}, {"t": {"x": names}}))
        assert tables["t"]["x"].tolist() == names.tolist()

    def test_the_same_data_make_the_same_bytes(self):
        tables = {"t": {"x": np.arange(3)}}
        assert pack({"a": 1}, tables) == pack({"a": 1}, tables)


class TestContent:
    def test_it_is_json_and_columns_of_one_length(self, profile):
        for content in (model_of(profile), calls_of(profile)):
            json.dumps(content.figures)
            for table in content.tables.values():
                assert len({len(column) for column in table.values()}) == 1

    def test_packing_keeps_it(self, profile):
        content = model_of(profile)
        figures, tables = unpack(content.packed())
        assert figures == json.loads(json.dumps(content.figures))
        for name, table in content.tables.items():
            for column, values in table.items():
                np.testing.assert_array_equal(tables[name][column], values)

    def test_what_calls_add_is_apart(self, profile):
        assert "execution" not in model_of(profile).figures["document"]
        calls = calls_of(profile)
        assert [run["name"] for run in calls.figures["execution"]["runs"]] == ["call 1", "call 2"]
        assert set(calls.tables) == {"spans"}

    def test_operations_know_how_often_they_run(self, profile):
        operations = model_of(profile).tables["operations"]
        in_update = operations["stage"] == "weight update"
        assert set(operations["runs"][~in_update]) == {4}
        assert set(operations["runs"][in_update]) == {1}
        assert ((operations["tile_use"] >= 0) & (operations["tile_use"] <= 1)).all()

    def test_parts_that_were_left_out_are_left_out(self, profile):
        less = Profile(profile.document, {**profile.tables})
        del less.tables["variables"], less.tables["jobs"], less.tables["spans"]
        dropped = ("cycles", "compute", "exchange", "sync", "flops", "source")
        less.tables["operations"] = {k: v for k, v in profile.tables["operations"].items() if k not in dropped}
        assert not {"variables", "jobs", "steps", "flames"} & model_of(less).tables.keys()
        assert calls_of(less).tables == {}


class TestTrace:
    def test_steps_of_an_ipu_do_not_overlap(self, profile):
        steps = model_of(profile).tables["steps"]
        for ipu in set(steps["ipu"].tolist()):
            those = steps["ipu"] == ipu
            start, end = steps["start"][those], (steps["start"] + steps["cycles"])[those]
            assert (start[1:] >= end[:-1] - 1e-6 * end.max()).all()

    def test_all_cycles_are_there(self, profile):
        steps, programs = model_of(profile).tables["steps"], profile.tables["programs"]
        here = programs["ipu"] >= 0  # both ends of a call are of no IPU
        expected = (programs["cycles"] * inner_repeats(programs))[here].sum()
        assert steps["cycles"].sum() == pytest.approx(expected)

    def test_all_ipus_update_at_the_same_time(self, profile):
        steps, programs = model_of(profile).tables["steps"], profile.tables["programs"]
        stage = profile.tables["operations"]["stage"][programs["operation"][steps["program"]]]
        in_update = (programs["operation"][steps["program"]] >= 0) & (stage == "weight update")
        starts = {ipu: steps["start"][in_update & (steps["ipu"] == ipu)].min() for ipu in (0, 1)}
        assert starts[0] == starts[1]

    def test_bars_of_the_flames_lie_in_those_above(self, profile):
        flames = model_of(profile).tables["flames"]
        for row in range(len(flames["depth"])):
            if flames["depth"][row]:
                above = (flames["ipu"] == flames["ipu"][row]) & (flames["depth"] == flames["depth"][row] - 1)
                inside = (flames["start"] <= flames["start"][row] + 1e-6) & (flames["end"] >= flames["end"][row] - 1e-6)
                assert (above & inside).sum() >= 1

    def test_modules_are_between_stage_and_operation(self, profile):
        flames = model_of(profile).tables["flames"]
        names = set(zip(flames["depth"].tolist(), flames["name"].tolist(), flames["kind"].tolist(), strict=True))
        assert (0, "forward of part 0", "stage") in names
        assert (1, "first", "module") in names


class TestJobs:
    def test_each_pass_of_each_micro_batch_is_there_once(self, profile):
        jobs = profile.tables["jobs"]
        pairs = sorted(zip(jobs["stage"].tolist(), jobs["micro"].tolist(), strict=True))
        labels = [stage["label"] for stage in profile.document["estimate"]["stages"]]
        assert [pair for pair in pairs if pair[1] >= 0] == sorted(
            (label, micro) for label in labels for micro in range(4)
        )
        assert pairs.count(("weight update", -1)) == 2

    def test_an_ipu_does_one_thing_at_a_time_within_the_round(self, profile):
        jobs, length = profile.tables["jobs"], profile.document["estimate"]["round"]["cycles"]
        for ipu in (0, 1):
            those = np.flatnonzero((jobs["ipu"] == ipu) & (jobs["micro"] >= 0))
            those = those[np.argsort(jobs["start"][those])]
            end = jobs["start"][those] + jobs["cycles"][those]
            assert (jobs["start"][those][1:] >= end[:-1] - 1e-6 * length).all()
            assert end.max() <= length * (1 + 1e-9)

    def test_a_micro_batch_goes_through_the_stages_in_order(self, profile):
        jobs = profile.tables["jobs"]
        for micro in range(4):
            starts = jobs["start"][jobs["micro"] == micro]
            assert (np.diff(starts) > 0).all()

    def test_rounds_and_updates_make_the_call(self, estimate):
        timeline = estimate.timeline
        rounds = sum(count * cycles for count, cycles in timeline.ticks) + timeline.update
        rest = timeline.cycles - rounds
        assert 0 <= rest < 0.1 * timeline.cycles  # what is left is the exchange with the host at both ends


class TestFindings:
    """The page, the text and the file show the list that the estimate made."""

    def test_all_forms_show_the_same(self, estimate):
        profile = build_profile(estimate, "model", {})  # a compiled program alone cannot be tried with changes
        expected = [found.title for found in estimate.findings]
        assert expected
        shown = calls_of(profile).figures["insights"]
        assert [found["title"] for found in shown] == expected
        text = as_text(summary(profile))
        for found in estimate.findings:
            assert found.text in text
            assert found.text in str(estimate) or found.kind in ("out of memory", "guess", "assumption")
            assert found.effect in text

    def test_what_was_measured_is_told(self, small):
        found = findings_in(small)
        assert any(it.title.startswith("A call took 500.0 ms") and it.tab == "host" for it in found)

    def test_a_report_of_an_older_version_has_none(self, small):
        small.document["estimate"].pop("findings", None)
        assert [it.kind for it in findings_in(small)] == ["measured"]

    def test_findings_of_another_form_are_refused(self, small):
        small.document["estimate"]["findings"] = [{"level": "hint"}]
        with pytest.raises(KeyError, match="kind"):
            check_document(small.document)


class TestOneClock:
    def test_the_tree_takes_as_long_as_the_summary_says(self, estimate, profile):
        programs = profile.tables["programs"]
        (call,) = np.flatnonzero(programs["parent"] < 0)
        assert programs["inside"][call] == pytest.approx(estimate.timeline.cycles)
        by_name = dict(zip(programs["name"].tolist(), programs["inside"].tolist(), strict=True))
        for stage in estimate.stages:
            links = sum(
                cycles
                for name, kind, cycles, parent in zip(
                    programs["name"], programs["type"], programs["cycles"], programs["parent"], strict=True
                )
                if kind == "GlobalExchange" and " to IPU " in name and programs["name"][parent] == stage.label
            )
            assert by_name[stage.label] - links == pytest.approx(stage.cycles)

    def test_the_update_is_there_with_all_of_its_copies(self, estimate, profile):
        programs = profile.tables["programs"]
        updates = np.flatnonzero((programs["name"] == "weight update") & (programs["operation"] < 0))
        assert max(programs["inside"][updates]) == pytest.approx(estimate.timeline.update)


class TestLiveness:
    def test_lists_explain_the_curve(self, profile):
        compilation = Compilation(profile)
        for step in compilation.livenessProgramSteps:
            listed = sum(variable.bytes for variable in step.notAlwaysLiveVariables)
            assert listed == pytest.approx(step.notAlwaysLiveMemoryForIpu(), rel=0.01, abs=16)


class TestComparing:
    def test_a_report_is_like_itself(self, small):
        content = compare(small, small)
        assert set(content.tables["operations"]["state"]) == {"same"}
        assert all(total["one"] == total["other"] for total in content.figures["totals"])

    def test_operations_are_added_removed_and_changed(self, small):
        other = Profile(copy.deepcopy(small.document), {**small.tables})
        operations = {name: values.copy() for name, values in small.tables["operations"].items()}
        operations["operator"] = operations["operator"].astype("U30")
        operations["operator"][5] = "aten.new.default"
        operations["cycles"][7] += 100
        other.tables["operations"] = operations
        found = compare(small, other).tables["operations"]
        states = {state: int((found["state"] == state).sum()) for state in ("added", "removed", "changed", "same")}
        assert states == {"added": 1, "removed": 1, "changed": 1, "same": 22}
        (changed,) = np.flatnonzero(found["state"] == "changed")
        assert found["cycles_other"][changed] - found["cycles_one"][changed] == 100
        (added,) = np.flatnonzero(found["state"] == "added")
        assert found["operator"][added] == "aten.new.default"
        assert found["cycles_one"][added] == 0

    def test_categories_and_layers_add_up(self, small, profile):
        content = compare(small, profile)
        for side, of in (("one", small), ("other", profile)):
            bytes_ = sum(ipu["includingGaps"] for ipu in of.document["memory"]["ipus"])
            rounding = sum(len(ipu["byCategory"]) for ipu in of.document["memory"]["ipus"])
            assert abs(content.tables["categories"][side].sum() - bytes_) <= rounding
            cycles = of.tables["operations"]["cycles"].sum()
            assert content.tables["layers"][f"cycles_{side}"].sum() == pytest.approx(cycles)

    def test_columns_that_one_report_lacks_are_left_out(self, small, profile):
        less = Profile(profile.document, {**profile.tables})
        less.tables["operations"] = {k: v for k, v in profile.tables["operations"].items() if k != "flops"}
        assert "flops_one" not in compare(small, less).tables["operations"]
