"""The programs to learn from: each runs to its end, learns what it says, and takes less than a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

import preloaded

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "programs"
PROGRAMS = sorted(FOLDER.glob("*.py"))


@pytest.mark.slow
@pytest.mark.timeout(330)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_learns_what_it_says(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CODEGEN", "interpret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = preloaded.run([program], cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(" s")  # what was learned, and how long it took


def test_the_gallery_names_every_program() -> None:
    page = (FOLDER.parents[1] / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert [program.name for program in PROGRAMS if f"`{program.name}`" not in page] == []


def test_the_gallery_shows_a_picture_of_every_program() -> None:
    docs = FOLDER.parents[1] / "docs"
    page = (docs / "gallery.md").read_text(encoding="utf-8")
    for program in PROGRAMS:
        picture = f"images/gallery/{program.stem}.png"
        assert f"]({picture})" in page
        assert (docs / picture).stat().st_size < 60_000
