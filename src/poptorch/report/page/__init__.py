"""``report.html``: a report as one page for browsers, which needs no other file and no network."""

from __future__ import annotations

from pathlib import Path

from poptorch._logging import warn_once
from poptorch.report import files
from poptorch.report.files import Profile
from poptorch.report.page.comparing import compare
from poptorch.report.page.content import Content, content_of
from poptorch.report.page.rendering import render

PAGE = "report.html"
COMPARISON = "comparison.html"


def save_report(folder: Path, profile: Profile) -> None:
    """Write all files of a report: the profile and the page."""
    files.save(folder, profile)
    write_page(folder, profile)


def write_page(folder: Path, profile: Profile) -> Path | None:
    """Write the page of a report into its folder; without plotly or jinja2 a warning says how to get it."""
    return _write(folder / PAGE, f"{profile.document['model']}: profile of poptorch", [content_of(profile)])


def write_comparison(file: Path, one: Profile, other: Profile, names: tuple[str, str]) -> Path | None:
    """Write a page with two reports and their differences."""
    contents = [content_of(profile, name) for profile, name in zip((one, other), names, strict=True)]
    return _write(file, f"{names[0]} and {names[1]}: profiles of poptorch", contents, compare(one, other))


def _write(file: Path, title: str, contents: list[Content], comparison: Content | None = None) -> Path | None:
    try:
        text = render(title, [it.packed() for it in contents], comparison.packed() if comparison is not None else None)
    except ModuleNotFoundError as missing:
        if missing.name not in ("plotly", "jinja2", "markupsafe"):
            raise
        warn_once(
            ("report page", missing.name),
            f"There is no {file.name}, because {missing.name} is not installed: pip install 'poptorch[report]', then "
            f"python -m poptorch report {file.parent}",
        )
        return None
    files.replace(file, text.encode())
    return file


__all__ = ["COMPARISON", "PAGE", "save_report", "write_comparison", "write_page"]
