"""A headless Chromium of the system, and a view of a report page in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

BROWSER, DRIVER = "chromium", "chromedriver"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1400,1000",
)  # fmt: skip
PATIENCE = 60.0
"""Seconds until something on the page counts as missing; machines that run tests may be slow."""


def missing() -> str:
    """What has to be installed for these tests, or nothing."""
    return " and ".join(name for name in (BROWSER, DRIVER) if shutil.which(name) is None)


@contextlib.contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A fresh browser without memories; it is closed at the end."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which(BROWSER))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for flag in (*FLAGS, f"--user-data-dir={folder}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(str(shutil.which(DRIVER))))
        try:
            driver.set_script_timeout(PATIENCE)
            yield driver
        finally:
            driver.quit()


class View:
    """One report page, opened."""

    def __init__(self, driver: webdriver.Chrome, page: Path, tab: str = "") -> None:
        self.driver = driver
        driver.get("about:blank")
        driver.get_log("browser")  # what earlier pages said is not of interest
        driver.get(page.absolute().as_uri() + (f"#{tab}" if tab else ""))
        self.until("return document.body?.dataset.ready !== undefined")

    @property
    def milliseconds(self) -> int:
        """From the navigation until the first tab was drawn."""
        return int(self.run("return document.body.dataset.ready"))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(script, *arguments):
            assert time.monotonic() < end, f"waited in vain: {script} {self.console()}"
            time.sleep(0.02)

    def console(self) -> list[str]:
        """Warnings and errors since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def tabs(self) -> list[str]:
        return [str(tab.get_attribute("id")).removeprefix("tab-") for tab in self.all("[role=tab]")]

    def open(self, tab: str) -> WebElement:
        """Open a tab; its panel."""
        self.run("document.getElementById(arguments[0]).click()", f"tab-{tab}")
        self.until("return document.getElementById(arguments[0]).hasAttribute('data-ready')", f"panel-{tab}")
        panel = self.one(f"#panel-{tab}")
        assert panel.is_displayed()
        return panel

    def press(self, element: WebElement, *keys: str) -> None:
        self.run("arguments[0].focus()", element)
        element.send_keys(*keys)

    def press_button(self, panel: str, text: str) -> None:
        """Press a button of a tab, by its text, with the keyboard."""
        found = [
            button
            for button in self.all(f"#panel-{panel} button")
            if button.text == text or button.get_attribute("aria-label") == text
        ]
        assert found, f"no button {text!r} in {panel}"
        self.press(found[0], Keys.ENTER)

    def tick(self, panel: str, label: str) -> None:
        """Tick a box, or the reverse."""
        (box,) = (it for it in self.all(f"#panel-{panel} label") if it.text == label)
        self.press(box.find_element(By.TAG_NAME, "input"), Keys.SPACE)

    def choose(self, selector: str, value: str) -> None:
        self.run(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', {bubbles: true}))",
            self.one(selector), value,
        )  # fmt: skip

    def charts(self, panel: str) -> list[WebElement]:
        return self.all(f"#panel-{panel} .chart[data-drawn]")

    def bars(self, chart: WebElement) -> int:
        """The number of bars and points of a chart."""
        return int(
            self.run("return arguments[0].querySelectorAll('.point path, .scatterlayer .js-line').length", chart)
        )

    def x_range(self, chart: WebElement) -> list[float]:
        return [float(end) for end in self.run("return arguments[0].layout.xaxis.range", chart)]

    def cells(self, grid: str, column: int) -> list[str]:
        """The texts of a column of a grid, of those rows that are on the page, in the order of the table."""
        return list(self.run(
            "return [...document.querySelectorAll(arguments[0] + ' .grid-row')]"
            ".sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)"
            ".map(row => row.children[arguments[1]].textContent)", grid, column,
        ))  # fmt: skip

    def screenshot(self, name: str) -> None:
        """Keep what the tab looks like, in the folder that ``REPORT_SCREENSHOTS`` names or under ``build``."""
        folder = Path(
            os.environ.get("REPORT_SCREENSHOTS") or Path(__file__).resolve().parents[3] / "build" / "screenshots"
        )
        folder.mkdir(parents=True, exist_ok=True)
        height = self.run("return document.documentElement.scrollHeight")
        self.driver.set_window_size(1400, min(3000, height + 160))
        self.run("return new Promise(requestAnimationFrame)")
        self.driver.save_screenshot(str(folder / f"{name}.png"))
        self.driver.set_window_size(1400, 1000)


__all__ = ["View", "chromium", "missing"]
