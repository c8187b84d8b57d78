"""What the page shows, without a browser: packing, content, trace, insights, differences."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from synthetic_profiles import synthetic_profile

from poptorch.report import files
from poptorch.report.files import Profile
from poptorch.report.page.comparing import compare
from poptorch.report.page.content import calls_of, model_of
from poptorch.report.page.insights import insights_of
from poptorch.report.page.packing import pack, unpack
from poptorch.report.page.trace import inner_repeats


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
        expected = (programs["cycles"] * inner_repeats(programs)).sum()
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


def titles(profile: Profile) -> list[str]:
    return [it.title for it in insights_of(profile, model_of(profile).tables["operations"])]


class TestInsights:
    def test_a_tile_that_is_too_full_comes_first(self, small):
        ipu = small.document["memory"]["ipus"][1]
        ipu.update(fits=False, tilesOverLimit=3, maxTileBytes=700_000)
        small.document["estimate"]["suggestions"] = ["IPU 1: recompute layers.3: −4.0 MB, it fits then"]
        found = insights_of(small, model_of(small).tables["operations"])
        assert (found[0].level, found[0].title, found[0].tab) == ("problem", "IPU 1 is out of memory", "memory")
        assert "3 tiles" in found[0].text
        (way,) = (it for it in found if it.title == "A way to make IPU 1 fit")
        assert way.action == "recompute layers.3"
        assert "it fits then" in way.text

    def test_an_almost_full_tile_is_a_hint(self, small):
        small.document["memory"]["ipus"][0]["maxTileBytes"] = 600_000
        assert "IPU 0 is almost full" in titles(small)

    def test_uneven_stages_name_the_slow_ipu(self, small):
        for stage in small.document["estimate"]["stages"]:
            stage["cycles"] = 9e5 if stage["ipu"] == 1 else 1e5
        found = insights_of(small, model_of(small).tables["operations"])
        (it,) = (insight for insight in found if insight.title == "The stages are uneven")
        assert "Move layers from IPU 1 towards IPU 0" in it.action
        assert "1.80 times" in it.text

    def test_bubbles_say_what_more_micro_batches_would_do(self, small):
        found = insights_of(small, model_of(small).tables["operations"])
        (it,) = (insight for insight in found if insight.title.startswith("IPUs wait for each other"))
        assert "2 of the 34 pipeline cycles" in it.text
        assert "gradientAccumulation(128)" in it.action

    def test_one_after_the_other_suggests_a_pipeline(self, small):
        small.document["estimate"]["round"]["pipelined"] = False
        found = insights_of(small, model_of(small).tables["operations"])
        assert any("PipelinedExecution" in insight.action for insight in found)

    @pytest.mark.parametrize(
        ("resource", "title"),
        [
            ("sync", "Tiles wait at sync points"),
            ("exchange", "Data moves between tiles"),
            ("host", "IPUs wait for the host"),
            ("link", "IPUs wait for links"),
            ("DDR", "IPUs wait for streaming memory"),
        ],
    )
    def test_what_takes_long_is_named(self, small, resource, title):
        small.document["estimate"]["cyclesByResource"] = {"compute": 60.0, resource: 40.0}
        assert f"{title}: 40% of the cycles" in titles(small)

    def test_operations_on_few_tiles_are_named(self, small):
        small.tables["programs"]["tiles"][:] = 1
        assert any(title.startswith("Small operations") for title in titles(small))

    def test_guesses_and_assumptions_are_told(self, small):
        small.document["estimate"]["uncoveredOps"] = {"aten.odd.default": 2}
        found = insights_of(small, model_of(small).tables["operations"])
        assert found[-1].text == "It is made up."
        assert any("aten.odd.default (2)" in insight.text for insight in found)

    def test_a_report_without_cycles_has_insights(self, small):
        for column in ("cycles", "compute", "exchange", "sync"):
            del small.tables["operations"][column]
        assert titles(small)


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
