"""The summary, and the command that prints it."""

from __future__ import annotations

import json

from poptorch.cli import main
from poptorch.report import files
from poptorch.report.categories import DATA_TYPES
from poptorch.report.summary import as_text, print_rich, summary


def test_sections_come_in_the_order_of_poplars_text_profile(folder):
    sections = summary(files.load(folder))
    assert [section.title for section in sections][:4] == ["Target", "Graph", "Memory Usage", "Execution"]
    parts = [part.title for part in sections[2].parts]
    order = ["Total", "By Memory Region", "By Data Type", "Vertex Data by category", "Vertex Data by type", "By Tile"]
    places = [next(i for i, title in enumerate(parts) if title.startswith(start)) for start in order]
    assert places == sorted(places)


def test_all_bytes_have_a_data_type(folder):
    known = {column for kind in DATA_TYPES for column in kind.columns}
    for ipu in files.load(folder).document["memory"]["ipus"]:
        assert set(ipu["byCategory"]) - known == {"gaps"}


def test_the_command_prints_plain_text(folder, capsys):
    assert main(["report", str(folder), "--text"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Target:\n")
    assert "Number of IPUs:       2" in text
    assert "forward of part 1" in text
    assert "call 2" in text


def test_the_command_prints_json(folder, capsys):
    assert main(["report", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((folder / "profile.json").read_text())


def test_a_folder_of_reports_shows_all_of_them(folder, capsys):
    assert main(["report", str(folder.parent)]) == 0
    assert capsys.readouterr().out.startswith("Target:")


def test_no_report_is_an_error_that_says_how_to_get_one(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "enableProfiling" in capsys.readouterr().err


def test_rich_prints_the_same_names(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    sections = summary(files.load(folder))
    if print_rich(sections):
        shown = capsys.readouterr().out
        for line in ("Memory Usage", "Internal Exchange Code", "forward of part 0"):
            assert line in shown
            assert line in as_text(sections)
