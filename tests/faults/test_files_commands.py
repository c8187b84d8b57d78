"""``python -m poptorch cache``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

import poptorch
from poptorch.cli import main
from poptorch.executable import file as container
from poptorch.host.store import cache

DAY = 86400


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Three files of a cache: the second is 10 days old, the third 20."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(directory))
    monkeypatch.setattr(cache, "local_folder", lambda: None)
    monkeypatch.setattr("poptorch.cli.cache.local_folder", lambda: None)
    for number in range(3):
        before = set(directory.iterdir()) if directory.exists() else set()
        poptorch.inferenceModel(nn.Linear(3, 2))(torch.ones(number + 1, 3))
        (made,) = set(directory.iterdir()) - before
        moment = time.time() - number * 10 * DAY
        os.utime(made, (moment, moment))
    container.write(directory / "mine.poptorch", {"a": b"exported by the user"})
    return directory


def files(directory) -> list:
    """From the least to the most recently used."""
    return sorted((p for p in directory.iterdir() if p.name[0] not in ".m"), key=lambda p: p.stat().st_mtime)


def test_list_and_size(cached, capsys):
    assert main(["cache", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == list(map(str, files(cached)))
    assert main(["cache", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["size"] for entry in listed] == [path.stat().st_size for path in files(cached)]
    assert main(["cache", "size"]) == 0
    assert f"{cached}: 3 files, " in capsys.readouterr().out


def test_verify(cached, capsys):
    assert main(["cache", "verify"]) == 0
    assert "3 of 3 files are sound" in capsys.readouterr().out
    damaged, open_to_all, pipe = files(cached)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    open_to_all.chmod(0o666)
    pipe.unlink()
    os.mkfifo(pipe)
    assert main(["cache", "verify"]) == 1
    text = capsys.readouterr().out
    assert "0 of 3 files are sound" in text
    for phrase in ("does not have the hash", "other users can write to it", "not a regular file"):
        assert phrase in text


def test_verify_checks_signatures(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("POPTORCH_KEY_FILE", str(tmp_path / "key"))
    folder = cache.Folder(tmp_path / "folder")
    folder.keep("ab" * 32, cache.StoredCode("null", {}))
    assert main(["cache", "--directory", str(tmp_path / "folder"), "verify"]) == 0
    assert "1 of 1" in capsys.readouterr().out
    monkeypatch.setenv("POPTORCH_KEY_FILE", str(tmp_path / "another"))
    assert main(["cache", "--directory", str(tmp_path / "folder"), "verify"]) == 1
    assert "was not signed by your own key" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "left"),
    [(["--older-than", "15d"], 2), (["--older-than", "1d"], 1), (["--max-size", "0"], 0), (["--max-size", "1T"], 3)],
)
def test_prune(cached, capsys, arguments, left):
    before = files(cached)
    (cached / ".0.poptorch-saving").write_bytes(b"left by a killed program of an earlier release")
    os.utime(cached / ".0.poptorch-saving", (1e9, 1e9))
    assert main(["cache", "prune", *arguments, "--dry-run"]) == 0
    assert files(cached) == before
    assert main(["cache", "prune", *arguments]) == 0
    assert files(cached) == before[3 - left :]
    assert (cached / "mine.poptorch").exists()
    assert not (cached / ".0.poptorch-saving").exists()
    assert f"{3 - left} files with " in capsys.readouterr().out


def test_prune_to_a_size_keeps_what_was_used_last(cached):
    _, older, newest = files(cached)
    enough = older.stat().st_size + newest.stat().st_size
    assert main(["cache", "prune", "--max-size", str(enough)]) == 0
    assert files(cached) == [older, newest]
    assert main(["cache", "prune", "--max-size", str(enough - 1)]) == 0
    assert files(cached) == [newest]


def test_what_a_program_finds_counts_as_used(cached):
    (oldest, *_) = files(cached)
    poptorch.inferenceModel(nn.Linear(3, 2))(torch.ones(3, 3))
    assert files(cached)[-1] == oldest


@pytest.mark.parametrize("arguments", [[], ["--older-than", "30"], ["--max-size", "2Q"], ["--max-size", "-1"]])
def test_prune_needs_to_be_told_what(cached, arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["cache", "prune", *arguments])
    assert exit_.value.code == 2
    assert len(files(cached)) == 3
    assert "prune" in capsys.readouterr().err


def test_as_a_program(cached):
    command = [sys.executable, "-m", "poptorch", "cache", "--directory", str(cached), "size"]
    assert "3 files" in subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
