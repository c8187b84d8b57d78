"""The page as text: the template, styles and scripts of this package, the script of plotly, and the data."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from poptorch.report.page.content import Content
from poptorch.report.page.packing import as_text

SCRIPTS = (
    "data", "format", "elements", "theme", "charts", "lanes", "grid", "tabs", "summary", "insights", "memory",
    "liveness", "programs", "operations", "trace", "pipeline", "host", "compare", "main",
)  # fmt: skip
"""In the order in which they are put together; each is a file in ``assets/js``."""

TEMPLATES = {"light": "plotly_white", "dark": "plotly_dark"}
"""The looks of plotly that go with the page's."""


@dataclass(frozen=True)
class PackedReport:
    """A report as texts for script elements: what is known after the compilation, and what calls add."""

    model: str
    calls: str

    @classmethod
    def of(cls, model: Content, calls: Content) -> PackedReport:
        """Both parts, packed."""
        return cls(as_text(model.packed()), as_text(calls.packed()))


def render(title: str, reports: Sequence[PackedReport], comparison: Content | None = None) -> str:
    """A page with one report, or with two and their differences."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_asset("page.html")).render(
        title=title,
        style=Markup(_asset("style.css")),
        script=Markup("\n".join(_asset(f"js/{name}.js") for name in SCRIPTS)),
        templates=as_text(gzip.compress(json.dumps(_templates()).encode(), mtime=0)),
        plotly=plotly_script(),
        reports=reports,
        comparison=as_text(comparison.packed()) if comparison is not None else None,
    )


@functools.cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def plotly_script() -> str:
    """The script of plotly, compressed: most tabs of most readers never need it."""
    script = (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return as_text(gzip.compress(script, mtime=0))


@functools.cache
def _templates() -> dict[str, Any]:
    folder = resources.files("plotly") / "package_data" / "templates"
    return {theme: json.loads((folder / f"{name}.json").read_text("utf-8")) for theme, name in TEMPLATES.items()}


__all__ = ["SCRIPTS", "PackedReport", "plotly_script", "render"]
