"""Documentation: every Python block runs, and the generated page is what the code says."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

import pages
import poptorch
import preloaded

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PROGRAMS = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "demo.py")
"""The demo has tests of its own, which run it and read what it shows."""

GENERATORS = sorted(
    f"generate_{what}.py" for what in ("compatibility", "reference", "error_catalogue", "operations_table")
)
"""The scripts whose pages must be what they would write; each is a run with --check."""

LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_python_blocks_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages.run(page)


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_pages_are_up_to_date(name: str) -> None:
    script = ROOT / "scripts" / name
    done = preloaded.run([script, "--check"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_an_example_runs(program: Path, tmp_path: Path) -> None:
    done = preloaded.run([program], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example shows something"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.name != "README.md"}


def anchors(page: Path) -> set[str]:
    """The anchors that headings of a page get."""
    text = pages.FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    given = {found[1] for heading in headings if (found := re.search(r"\{#(.+)\}$", heading))}
    return given | {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(pages.FENCE.sub("", page.read_text())):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}, and there is no such heading"


def in_the_reference(name: str) -> bool:
    """Whether an API page documents a public name: by itself, as a listed member, or with its whole module."""
    text = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    if re.search(rf"(?:^::: [\w.]+\.|members: .*\b){name}\b", text, re.MULTILINE):
        return True
    home = getattr(getattr(poptorch, name), "__module__", None)
    return re.search(rf"^::: {home}$(?!\n    options:\n      members)", text, re.MULTILINE) is not None


def test_every_public_name_is_in_the_reference() -> None:
    plain_values = {"ATTR_PREFIX", "attributes_lists", "BlockId", "logger"}  # no docstring to show
    names = {name for name in dir(poptorch) if not name.startswith("_")}
    names = {name for name in names if not isinstance(getattr(poptorch, name), types.ModuleType)}
    assert {name for name in names - plain_values if not in_the_reference(name)} == set()
