"""The page in a real browser: every tab opened, zoomed, searched, sorted; keyboard; dark and light."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from synthetic_profiles import synthetic_profile

import poptorch
from poptorch.report import files, page
from poptorch.report.files import Profile

pytest.importorskip("selenium")
from page_view import View
from selenium.webdriver.common.keys import Keys

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TABS = ["summary", "insights", "memory", "liveness", "programs", "operations", "trace", "pipeline", "host"]
CHARTS = {
    "summary": 2,
    "insights": 0,
    "memory": 1,
    "liveness": 1,
    "programs": 0,
    "operations": 1,
    "trace": 1,
    "pipeline": 3,
    "host": 2,
}


@pytest.fixture(scope="module")
def report(written) -> Path:
    """The page of a small pipelined training model."""
    return written[0] / "report.html"


@pytest.fixture
def view(driver, report) -> View:
    return View(driver, report)


def number(text: str) -> float:
    return float(text.replace(",", ""))


class TestEveryTab:
    def test_it_opens_with_its_charts_and_says_nothing_on_the_console(self, view):
        assert view.tabs() == TABS
        for tab in TABS:
            panel = view.open(tab)
            assert panel.text
            charts = view.charts(tab)
            assert len(charts) == CHARTS[tab], tab
            assert all(view.bars(chart) > 0 for chart in charts), tab
            assert not [
                other
                for other in view.all("[role=tabpanel]")
                if other.is_displayed() and other.get_attribute("id") != f"panel-{tab}"
            ]
            view.screenshot(f"training-{tab}-light")
        assert view.console() == []
        assert view.run("return performance.getEntriesByType('resource').length") == 0

    def test_charts_wait_until_their_tab_is_opened(self, view):
        assert view.run("return document.querySelectorAll('#panel-memory *').length") == 0
        view.open("memory")
        assert view.charts("memory")

    def test_the_address_names_a_tab(self, driver, report):
        assert View(driver, report, "operations").one("#panel-operations").is_displayed()

    def test_the_chart_of_no_tab_offers_to_send_it_away(self, view):
        titles = view.run("return [...document.querySelectorAll('.modebar-btn')].map(it => it.dataset.title)")
        assert titles
        assert not [title for title in titles if "hare" in title]


class TestKeyboard:
    def test_arrows_move_between_tabs(self, view):
        view.press(view.one("#tab-summary"), Keys.ARROW_RIGHT)
        assert view.run("return document.activeElement.id") == "tab-insights"
        assert view.one("#panel-insights").is_displayed()
        view.press(view.one("#tab-insights"), Keys.END)
        assert view.run("return document.activeElement.id") == "tab-host"
        view.press(view.one("#tab-host"), Keys.ARROW_RIGHT)
        view.press(view.one("#tab-summary"), Keys.ARROW_LEFT)
        view.press(view.one("#tab-host"), Keys.HOME)
        assert view.run("return document.activeElement.id") == "tab-summary"
        stops = view.run(
            "return [...document.querySelectorAll('[role=tab]')].filter(it => it.tabIndex === 0).map(it => it.id)"
        )
        assert stops == ["tab-summary"]

    def test_focus_is_visible(self, view):
        view.press(view.one("#tab-summary"), Keys.ARROW_RIGHT)
        style = (
            "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, parseFloat(s.outlineWidth)]"
        )
        shape, width = view.run(style)
        assert shape == "solid"
        assert width >= 2

    def test_all_that_takes_input_has_a_name(self, view):
        for tab in TABS:
            view.open(tab)
        nameless = view.run(
            "return [...document.querySelectorAll('input, select, button')]"
            ".filter(it => !it.closest('.js-plotly-plot'))"
            ".filter(it => !(it.getAttribute('aria-label') || it.textContent.trim() || it.labels?.length))"
            ".map(it => it.outerHTML)"
        )
        assert nameless == []

    def test_the_tree_opens_and_closes(self, view):
        view.open("programs")
        body = view.one("#panel-programs .grid-body")
        before = view.cells("#panel-programs .grid", 0)
        view.press(body, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
        after = view.cells("#panel-programs .grid", 0)
        assert before[3].endswith("forward of part 0")
        assert after[:4] == [*before[:3], after[3]]
        assert after[3].startswith("▾")
        assert len(after) > len(before)
        view.press(body, Keys.ARROW_LEFT)
        assert view.cells("#panel-programs .grid", 0) == before
        assert "forward of part 0" in view.one("#panel-programs h3").text
        view.press_button("programs", "Everything")
        assert len(view.cells("#panel-programs .grid", 0)) > len(before)


class TestMemory:
    def test_tiles_can_be_zoomed_and_seen_by_liveness(self, view):
        view.open("memory")
        (chart,) = view.charts("memory")
        whole = view.x_range(chart)
        view.press_button("memory", "Zoom in")
        view.until(
            "return arguments[0].layout.xaxis.range[1] - arguments[0].layout.xaxis.range[0] < arguments[1]",
            chart,
            whole[1] - whole[0],
        )
        view.press_button("memory", "Show all")
        assert view.x_range(chart) == whole
        names = "return arguments[0].data.map(it => it.name)"
        assert "weights" in view.run(names, chart)
        view.press_button("memory", "Liveness")
        view.until("return arguments[0].data.length === 3", chart)
        assert view.run(names, chart) == ["always live", "not always live", "gaps"]
        view.tick("memory", "Include gaps")
        view.until("return arguments[0].data.length === 2", chart)
        view.tick("memory", "Show the limit")
        view.until("return arguments[0].layout.yaxis.range[1] > 624", chart)
        assert view.console() == []

    def test_tensors_of_one_tile_are_those_of_the_objects(self, view, folder):
        view.open("memory")
        (chart,) = view.charts("memory")
        view.run("arguments[0].emit('plotly_click', {points: [{customdata: 1475}]})", chart)
        tile = poptorch.report.openReport(folder).compilation.loweredVariables.forTile(1475)
        assert view.one("#panel-memory .grid-count").text == f"{len(list(tile))} rows"

    def test_tensors_are_searched_and_sorted(self, view):
        view.open("memory")
        view.press(view.one("#panel-memory input[type=search]"), "first.weight")
        names = view.cells("#panel-memory .grid", 0)
        assert names
        assert all("first.weight" in name for name in names)
        assert " of " in view.one("#panel-memory .grid-count").text
        view.press(view.one("#panel-memory .grid-head button"), Keys.ENTER)
        assert view.cells("#panel-memory .grid", 0) == sorted(names, key=str.lower)
        assert view.one("#panel-memory [aria-sort]").get_attribute("aria-sort") == "ascending"
        view.press(view.one("#panel-memory input[type=search]"), "no such tensor")
        assert "Nothing found" in view.one("#panel-memory .grid-body").text


class TestLiveness:
    def test_tensors_at_a_step_are_those_of_the_objects(self, view, folder):
        view.open("liveness")
        steps = poptorch.report.openReport(folder).compilation.livenessProgramSteps
        view.choose("#panel-liveness input[type=number]", "3")
        live = steps[3].notAlwaysLiveVariables
        assert view.one("#panel-liveness .grid-count").text == f"{len(live)} rows"
        assert view.cells("#panel-liveness .grid", 0)[0] in {it.name for it in live if it.bytes == live[0].bytes}
        assert "Step 3" in view.one("#panel-liveness p[role=status]").text
        view.press(view.one("#panel-liveness input[type=range]"), Keys.ARROW_RIGHT)
        assert "Step 4" in view.one("#panel-liveness p[role=status]").text
        view.choose("#panel-liveness select", "1")
        view.press_button("liveness", "Go to the peak")
        view.press_button("liveness", "Zoom in")
        assert view.console() == []


class TestOperations:
    def test_they_are_summed_up_sorted_and_searched(self, view, folder):
        operations = files.load(folder).tables["operations"]
        view.open("operations")
        view.press_button("operations", "Operation")
        grid = "#panel-operations .grid"
        assert view.one("#panel-operations .grid-count").text == f"{len(operations['name'])} rows"
        shares = view.cells(grid, 6)
        assert shares == sorted(shares, key=lambda text: -float(text.removesuffix(" %")))
        heads = view.all("#panel-operations .grid-head button")
        view.press(heads[5], Keys.ENTER)  # cycles of one run
        cycles = [number(text) for text in view.cells(grid, 5)]
        assert cycles[0] == round(operations["cycles"].max())
        view.press(heads[5], Keys.ENTER)
        assert number(view.cells(grid, 5)[0]) == 0
        view.press(
            view.one("#panel-operations input[type=search]"),
            "relu",
        )
        assert view.cells(grid, 0)
        view.press(view.one("#panel-operations .grid-body"), Keys.ARROW_DOWN)
        assert "conftest.py:" in view.one("#panel-operations").text  # the line of the model
        for group in ("Module", "Outer module", "Operator", "Stage", "Source line"):
            view.press_button("operations", group)
            assert view.cells(grid, 0)
        view.press_button("operations", "FLOPs")
        view.screenshot("training-operations-by-line")
        assert view.console() == []


class TestTrace:
    def test_each_view_zooms(self, view):
        view.open("trace")
        for kind in ("Flat", "Flame", "BSP"):
            view.press_button("trace", kind)
            view.until("return document.querySelector('#panel-trace .chart[data-drawn]')")
            (chart,) = view.charts("trace")
            whole = view.x_range(chart)
            for _ in range(4):
                view.press_button("trace", "Zoom in")
            view.until(
                "return arguments[0].layout.xaxis.range[1] - arguments[0].layout.xaxis.range[0] < arguments[1]",
                chart,
                (whole[1] - whole[0]) / 15,
            )
            view.press_button("trace", "Move right")
            assert view.bars(chart) > 0, kind
            view.screenshot(f"training-trace-{kind.lower()}-zoomed")
            view.press_button("trace", "Show all")
            assert view.x_range(chart) == pytest.approx(whole)
            view.screenshot(f"training-trace-{kind.lower()}")
        view.choose("#panel-trace select", "1")
        assert view.console() == []


class TestPipelineAndHost:
    def test_lanes_and_calls_can_be_chosen(self, view):
        view.open("pipeline")
        view.press_button("pipeline", "Workers of the host")
        view.until("return document.querySelectorAll('#panel-pipeline .chart[data-drawn]').length === 3")
        assert "worker 0" in view.one("#panel-pipeline").text
        view.press_button("pipeline", "Zoom in")
        view.open("host")
        view.choose("#panel-host select", "0")
        assert "measured on this host" in view.one("#panel-host").text
        assert view.console() == []


class TestTheme:
    @pytest.mark.parametrize("theme", ["dark", "light"])
    def test_texts_can_be_read(self, view, theme):
        view.choose("#theme", theme)
        for tab in TABS:
            view.open(tab)
            view.screenshot(f"training-{tab}-{theme}")
            assert contrasts(view, f"#panel-{tab}") > 4.5, tab
        (chart,) = view.charts("memory")
        text = view.run("return getComputedStyle(arguments[0].querySelector('.xtick text')).fill", chart)
        assert (luminance(text) > 0.5) == (theme == "dark")
        assert view.console() == []

    def test_the_system_decides_at_first(self, driver, report):
        for theme in ("dark", "light"):
            driver.execute_cdp_cmd(
                "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
            )
            view = View(driver, report)
            view.choose("#theme", "system")
            assert view.run("return document.documentElement.dataset.theme") == theme
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_the_choice_changes_charts_that_are_there(self, view):
        view.open("memory")
        (chart,) = view.charts("memory")
        view.choose("#theme", "dark")
        view.until("return arguments[0].layout.font.color === '#e6eaf0'", chart)
        view.choose("#theme", "light")
        view.until("return arguments[0].layout.font.color === '#1c2430'", chart)


def luminance(colour: str) -> float:
    red, green, blue = (float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
    linear = [it / 12.92 if it <= 0.03928 else ((it + 0.055) / 1.055) ** 2.4 for it in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrasts(view: View, selector: str) -> float:
    """The least contrast of a text with the ground that it is on."""
    pairs = view.run(
        """
        const ground = (it) => {
            for (; it; it = it.parentElement) {
                const colour = getComputedStyle(it).backgroundColor;
                if (!colour.startsWith("rgba(0, 0, 0, 0")) return colour;
            }
        };
        const says = (it) => [...it.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
        return [...document.querySelectorAll(arguments[0] + " *")]
            .filter(it => !it.closest(".chart") && says(it))
            .map(it => [getComputedStyle(it).color, ground(it)]);
        """,
        selector,
    )
    found = []
    for text, ground in {tuple(pair) for pair in pairs}:
        low, high = sorted((luminance(text), luminance(ground)))
        found.append((high + 0.05) / (low + 0.05))
    return min(found)


class TestEmptyStates:
    @pytest.fixture(scope="class")
    def lonely(self, tmp_path_factory) -> Path:
        """Inference on one IPU, never called, without cycles and tensors."""
        folder = tmp_path_factory.mktemp("lonely")
        options = poptorch.Options().enableProfiling(str(folder))
        options._Popart.setEngineOptions({
            "autoReport.directory": str(folder), "autoReport.all": "true", "autoReport.outputLoweredVars": "false",
            "autoReport.outputDebugInfo": "false", "profiler.includeFlopEstimates": "false",
            "profiler.includeCycleEstimates": "false",
        })  # fmt: skip
        executor = poptorch.inferenceModel(torch.nn.ReLU(), options)
        executor.compile(torch.ones(2))
        executor.destroy()
        return folder / "inference" / "report.html"

    def test_each_tab_says_why_there_is_nothing(self, driver, lonely):
        view = View(driver, lonely)
        for tab in TABS:
            view.open(tab)
            view.screenshot(f"empty-{tab}")
        texts = {
            tab: view.run("return document.getElementById(arguments[0]).textContent", f"panel-{tab}") for tab in TABS
        }
        assert "one IPU: there is no pipeline" in texts["pipeline"]
        assert "No call was measured" in texts["host"]
        assert "outputLoweredVars" in texts["memory"]
        assert "outputLoweredVars" in texts["liveness"]
        assert "includeCycleEstimates" in texts["trace"]
        assert view.console() == []

    def test_a_small_inference_model_opens(self, driver, tmp_path):
        executor = poptorch.inferenceModel(torch.nn.Linear(4, 4), poptorch.Options().enableProfiling(str(tmp_path)))
        executor(torch.ones(2, 4))
        executor.destroy()
        view = View(driver, tmp_path / "inference" / "report.html")
        for tab in TABS:
            view.open(tab)
            view.screenshot(f"inference-{tab}")
        assert view.console() == []

    def test_a_model_without_operations_opens(self, driver, tmp_path):
        profile = synthetic_profile(2, 8, 24, 10)
        for name in ("operations", "liveness", "variables", "jobs", "spans"):
            profile.tables[name] = {column: values[:0] for column, values in profile.tables[name].items()}
        profile.document["execution"]["runs"] = []
        profile.tables["programs"] = {column: values[:1] for column, values in profile.tables["programs"].items()}
        view = View(driver, page.write_page(tmp_path, profile))
        for tab in TABS:
            view.open(tab)
        assert view.console() == []

    def test_an_ipu_without_steps_says_so(self, driver, tmp_path):
        profile = synthetic_profile(2, 8, 24, 10)
        kept = profile.tables["liveness"]["ipu"] == 1
        profile.tables["liveness"] = {column: values[kept] for column, values in profile.tables["liveness"].items()}
        view = View(driver, page.write_page(tmp_path, profile), "liveness")
        assert "IPU 0 has no steps" in view.one("#panel-liveness").text
        view.choose("#panel-liveness select", "1")
        assert "Step " in view.one("#panel-liveness p[role=status]").text
        assert view.console() == []


class TestSafety:
    def test_names_of_the_user_do_not_run(self, driver, tmp_path):
        evil = "<script>window.evil=1</script><img src=x onerror=window.evil=1>"
        profile = synthetic_profile(2, 8, 24, 10)
        profile.document["model"] = evil
        profile.document["memory"]["ipus"][0]["largest"][0]["name"] = evil
        profile.document["memory"]["ipus"][0].update(fits=False)
        profile.document["estimate"]["assumptions"] = [evil]
        for table in ("operations", "variables", "liveness", "programs"):
            for column in ("name", "layer", "source", "operator"):
                if column in profile.tables[table]:
                    profile.tables[table][column] = np.array([evil] * len(profile.tables[table][column]))
        view = View(driver, page.write_page(tmp_path, profile))
        for tab in TABS:
            view.open(tab)
        view.open("operations")
        view.press_button("operations", "Operation")
        for kind in ("Flame", "BSP"):
            view.open("trace")
            view.press_button("trace", kind)
        assert view.one("#title").text == evil
        assert view.run("return window.evil ?? null") is None
        assert view.all("main img") == []
        assert view.console() == []
        view.open("operations")
        view.screenshot("evil-operations")


class TestComparison:
    @pytest.fixture(scope="class")
    def comparison(self, tmp_path_factory, written) -> Path:
        folder = tmp_path_factory.mktemp("comparison")
        one = files.load(written[0])
        other = Profile(copy.deepcopy(one.document), {**one.tables})
        operations = {name: values.copy() for name, values in one.tables["operations"].items()}
        operations["cycles"] *= 2
        operations["layer"] = operations["layer"].astype("U40")
        operations["layer"][0] = "another"
        other.tables["operations"] = operations
        other.document["estimate"]["cycles"] *= 2
        return page.write_comparison(folder / "comparison.html", one, other, ("before", "after"))

    def test_differences_come_first_and_both_reports_are_there(self, driver, comparison):
        view = View(driver, comparison)
        assert view.tabs() == ["compare", *TABS]
        text = view.one("#panel-compare").text
        assert "+100 %" in text
        view.screenshot("comparison-light")
        for state, at_least in (("Added (1)", 1), ("Removed (1)", 1), ("Changed", 2)):
            (button,) = (it for it in view.all("#panel-compare button") if it.text.startswith(state))
            view.press(button, Keys.ENTER)
            assert len(view.cells("#panel-compare .card:last-child .grid", 0)) >= at_least
        view.press(view.all("#panel-compare input[type=search]")[-1], "mm")
        for name in ("1", "0"):
            view.choose("#report", name)
            for tab in TABS:
                view.open(tab)
        assert "before" in view.one("#subtitle").text
        view.open("compare")
        view.choose("#theme", "dark")
        view.screenshot("comparison-dark")
        view.choose("#theme", "light")
        assert view.console() == []


class TestLarge:
    def test_the_largest_report_opens_and_keeps_few_elements(self, driver, tmp_path):
        view = View(driver, page.write_page(tmp_path, synthetic_profile(ipus=16, tiles=1472, operations=5000)))
        for tab in TABS:
            view.open(tab)
            view.screenshot(f"large-{tab}")
        assert "for a time" in view.cells("#panel-liveness .grid", 4)
        view.open("operations")
        view.press_button("operations", "Operation")
        assert len(view.cells("#panel-operations .grid", 0)) < 60
        body = view.one("#panel-operations .grid-body")
        view.run("arguments[0].scrollTop = arguments[0].scrollHeight", body)
        view.until(
            "return [...arguments[0].querySelectorAll('.grid-row')].some(it => it.ariaRowIndex === '5001')", body
        )
        view.press(view.one("#panel-operations input[type=search]"), "op_4321")
        assert view.cells("#panel-operations .grid", 0) == ["op_4321"]
        assert view.run("return document.querySelectorAll('*').length") < 40_000
        assert view.console() == []
