"""An estimate as a file: a page, all figures as JSON, a text, or a folder with a whole report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from poptorch.errors import createPoptorchError
from poptorch.report.building import build_profile
from poptorch.report.page import ReportWriter, write_page_as
from poptorch_files import replace

if TYPE_CHECKING:
    from poptorch.ipu_model import Estimate

_FORMS = (".html", ".json", ".txt")


def write_estimate(file: Path, estimate: Estimate, name: str) -> Path:
    """Write the estimate as the end of the file's name says; without an end, a folder as profiling writes it."""
    if file.suffix == ".json":
        replace(file, (json.dumps(estimate.to_dict(), indent=2) + "\n").encode())
        return file
    if file.suffix == ".txt":
        replace(file, f"{estimate}\n".encode())
        return file
    if file.suffix not in ("", ".html"):
        raise createPoptorchError(
            f"{file}: an estimate is saved as {', '.join(_FORMS)}, or as a folder (a name without an end)."
        )
    profile = build_profile(estimate, name, {})
    if file.suffix:
        if write_page_as(file, profile) is None:
            raise createPoptorchError(
                f"There is no {file}: pages need plotly and jinja2 (pip install 'poptorch[report]')."
            )
        return file
    file.mkdir(parents=True, exist_ok=True)
    ReportWriter()(file, profile)
    return file


__all__ = ["write_estimate"]
