"""``report.html``: a report as one page for browsers, which needs no other file and no network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from poptorch._logging import warn_once
from poptorch.report import files
from poptorch.report.files import Profile, Table
from poptorch.report.page.comparing import compare
from poptorch.report.page.content import Content, calls_of, model_of
from poptorch.report.page.packing import as_text
from poptorch.report.page.rendering import PackedReport, render
from poptorch_files import replace

PAGE = "report.html"
COMPARISON = "comparison.html"


class ReportWriter:
    """Writes all files of one report, the page among them. What calls do not change is packed once."""

    def __init__(self) -> None:
        self._programs: Table | None = None
        self._packed = PackedReport("", "")

    def __call__(self, folder: Path, profile: Profile) -> None:
        """Write the profile and the page."""
        files.save(folder, profile)
        if profile.tables["programs"] is not self._programs:
            self._packed = PackedReport(as_text(model_of(profile).packed()), "")
            self._programs = profile.tables["programs"]
        packed = dataclasses.replace(self._packed, calls=as_text(calls_of(profile).packed()))
        write(folder / PAGE, _title(profile), [packed])


def write_page(folder: Path, profile: Profile) -> Path | None:
    """Write the page of a report into its folder; without plotly or jinja2 a warning says how to get it."""
    return write(folder / PAGE, _title(profile), [PackedReport.of(model_of(profile), calls_of(profile))])


def write_page_as(file: Path, profile: Profile) -> Path | None:
    """Write the page of a report to a file of any name."""
    return write(file, _title(profile), [PackedReport.of(model_of(profile), calls_of(profile))])


def write_comparison(file: Path, one: Profile, other: Profile, names: tuple[str, str]) -> Path | None:
    """Write a page with two reports and their differences."""
    reports = [
        PackedReport.of(model_of(profile, name), calls_of(profile))
        for profile, name in zip((one, other), names, strict=True)
    ]
    return write(file, f"{names[0]} and {names[1]}: profiles of poptorch", reports, compare(one, other))


def _title(profile: Profile) -> str:
    return f"{profile.document['model']}: profile of poptorch"


def write(file: Path, title: str, reports: Sequence[PackedReport], comparison: Content | None = None) -> Path | None:
    """Write a page about some reports; ``None``, and a warning, where a library is missing that draws it."""
    try:
        text = render(title, reports, comparison)
    except ModuleNotFoundError as missing:
        if missing.name not in ("plotly", "jinja2", "markupsafe"):
            raise
        warn_once(
            ("report page", missing.name),
            f"There is no {file.name}, because {missing.name} is not installed: pip install 'poptorch[report]', then "
            f"poptorch report {file.parent}",
        )
        return None
    replace(file, text.encode(errors="replace"))
    return file


__all__ = ["COMPARISON", "PAGE", "ReportWriter", "write_comparison", "write_page", "write_page_as"]
