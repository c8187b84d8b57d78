"""``poptorch report FOLDER``: the summary and the page of a report, or of all reports in a folder."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poptorch.errors import createPoptorchError

if TYPE_CHECKING:
    from poptorch.report.files import Profile


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("report", help="show what a report says about memory and time of a model")
    parser.add_argument("folder", type=Path, help="a folder with profile.pop, or with such folders")
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="OTHER",
        help="print the differences from this report to another one, and write a page with both",
    )
    parser.add_argument(
        "--tolerance", type=float, default=1.0, metavar="PERCENT",
        help="with --compare: what the other report may be worse by before the exit status is 3 (1 by default)",
    )  # fmt: skip
    parser.add_argument(
        "--trace", type=Path, metavar="FILE",
        help="write measured spans of this host and the modelled IPUs as one trace for ui.perfetto.dev",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="plain text, on a terminal as well")
    form.add_argument("--json", action="store_true", help="all figures as JSON; of several reports, by name")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    profiles = _profiles(chosen.folder)
    if chosen.compare is not None:
        return _compare(profiles, _profiles(chosen.compare), chosen.json, chosen.tolerance / 100)
    if chosen.trace is not None:
        _write_trace(profiles, chosen.trace)
    pages = _write_pages(profiles)  # before the text: `… | head` closes the pipe early
    if chosen.json:
        described = {folder.name: profile.described() for folder, profile in profiles.items()}
        print(json.dumps(described if len(described) > 1 else next(iter(described.values())), indent=2))
        return 0
    _print(profiles, chosen.text)
    for page in pages:
        print(f"Page for browsers: {page}")
    return 0


def _profiles(folder: Path) -> dict[Path, Profile]:
    from poptorch.report import files

    folders = files.reports_in(folder)
    if not folders:
        raise createPoptorchError(
            f"There is no report in {folder}: neither it nor a folder in it has a file profile.pop. Reports are "
            "written with Options.enableProfiling or the environment variable POPLAR_ENGINE_OPTIONS."
        )
    return {it: files.load(it) for it in folders}


def _print(profiles: dict[Path, Profile], plain: bool) -> None:
    from poptorch.report.summary import as_text, print_rich, summary

    for folder, profile in profiles.items():
        if len(profiles) > 1:
            print(f"==== {folder.name} ====")
        sections = summary(profile)
        if plain or not sys.stdout.isatty() or not print_rich(sections):
            print(as_text(sections))


def _write_trace(profiles: dict[Path, Profile], file: Path) -> None:
    from poptorch.report.page.timeline_file import write_timeline

    if len(profiles) > 1:
        raise createPoptorchError(
            f"--trace takes one report; there are several: {_listed(profiles)}. Name one of them."
        )
    write_timeline(file, next(iter(profiles.values())))


def _write_pages(profiles: dict[Path, Profile]) -> list[Path]:
    from poptorch.report.page import write_page

    pages = []
    for folder, profile in profiles.items():
        try:
            page = write_page(folder, profile)
        except OSError as problem:
            print(f"The page cannot be written to {folder}: {problem}", file=sys.stderr)
            continue
        if page is not None:
            pages.append(page)
    return pages


WORSE = 3
"""The exit status of a comparison whose second report is worse."""


def _compare(ours: dict[Path, Profile], theirs: dict[Path, Profile], as_json: bool, tolerance: float) -> int:
    """The differences of each pair of reports: of the same name, or the only ones."""
    from poptorch.report.page import COMPARISON, write_comparison
    from poptorch.report.page.differences import as_section, differences
    from poptorch.report.summary import as_text

    by_name = {folder.name: (folder, profile) for folder, profile in theirs.items()}
    if len(ours) == len(theirs) == 1:
        pairs = list(zip(ours.items(), theirs.items(), strict=True))
    else:
        pairs = [((folder, it), by_name[folder.name]) for folder, it in ours.items() if folder.name in by_name]
    if not pairs:
        raise createPoptorchError(
            f"There is nothing to compare: the reports {_listed(ours)} and {_listed(theirs)} have no name in common. "
            "Name two folders with one report each."
        )
    found: dict[str, dict[str, Any]] = {}
    for (folder, profile), (other, other_profile) in pairs:
        names = _names(folder, other)
        found[folder.name] = differences(profile, other_profile, tolerance)
        page = write_comparison(folder / COMPARISON, profile, other_profile, names)
        if not as_json:
            print(as_text([as_section(found[folder.name], names)]))
            if page is not None:
                print(f"Page for browsers: {page}")
    if as_json:
        print(json.dumps(found if len(found) > 1 else next(iter(found.values())), indent=2))
    return WORSE if any(it["worse"] for it in found.values()) else 0


def _listed(profiles: dict[Path, Profile]) -> str:
    return ", ".join(folder.name for folder in profiles)


def _names(one: Path, other: Path) -> tuple[str, str]:
    """What tells two folders apart: their last parts, and as many before these as needed.

    >>> _names(Path("/a/before/training"), Path("/a/after/training"))
    ('before/training', 'after/training')
    """
    first, second = one.absolute().parts, other.absolute().parts
    for length in range(1, max(len(first), len(second)) + 1):
        if first[-length:] != second[-length:]:
            return "/".join(first[-length:]), "/".join(second[-length:])
    return "/".join(first[-1:]), "/".join(second[-1:])
