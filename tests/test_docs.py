"""Documentation: every Python block runs, and the generated page is what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest
from mktestdocs import check_md_file

import preloaded

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PROGRAMS = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "demo.py")
"""The demo has tests of its own, which run it and read what it shows."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_python_blocks_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_md_file(page, memory=True)


def test_the_compatibility_page_is_up_to_date() -> None:
    script = ROOT / "scripts" / "generate_compatibility.py"
    done = preloaded.run([script, "--check"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_an_example_runs(program: Path, tmp_path: Path) -> None:
    done = preloaded.run([program], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example shows something"
