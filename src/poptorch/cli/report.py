"""``python -m poptorch report FOLDER``: the summary of a report, or of all reports in a folder."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from poptorch.errors import createPoptorchError


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("report", help="show what a report says about memory and time of a model")
    parser.add_argument("folder", type=Path, help="a folder with profile.pop, or with such folders")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="plain text, on a terminal as well")
    form.add_argument("--json", action="store_true", help="all figures as JSON; of several reports, by name")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    from poptorch.report import files
    from poptorch.report.summary import as_text, print_rich, summary

    folders = files.reports_in(chosen.folder)
    if not folders:
        raise createPoptorchError(
            f"There is no report in {chosen.folder}: neither it nor a folder in it has a file profile.pop. Reports are "
            "written with Options.enableProfiling or the environment variable POPLAR_ENGINE_OPTIONS."
        )
    profiles = {folder.name: files.load(folder) for folder in folders}
    if chosen.json:
        described = {name: profile.described() for name, profile in profiles.items()}
        print(json.dumps(described if len(described) > 1 else next(iter(described.values())), indent=2))
        return 0
    for name, profile in profiles.items():
        if len(profiles) > 1:
            print(f"==== {name} ====")
        sections = summary(profile)
        if chosen.text or not sys.stdout.isatty() or not print_rich(sections):
            print(as_text(sections))
    return 0
